"""A compiled Keras model as plain step functions: what one replica does with its part of a global batch.

Nothing here knows a strategy. Metrics are not updated in place: a step returns what it adds to their state, as
tensors, and whoever runs the steps adds them up, so no count is lost between replicas, workers and retries
(`keras.metrics.Metric.stateless_update_state`; it holds for every metric whose state adds up).
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf


class Steps:
    """The step functions of a compiled, built model, and the sums that they return.

    `Totals`, the state that steps add up, is a flat list: the loss times its examples f32[], the examples f32[],
    then each metric variable in the model's order.
    """

    def __init__(self, model: keras.Model):
        self.model = model
        self._output_losses = model._compile_loss.metrics if model._compile_loss is not None else []
        self._metrics = model._compile_metrics
        differentiate = self._differentiate
        # XLA compiles what one replica computes; the exchange between replicas and the update stay outside of it.
        self._gradients = tf.function(differentiate, jit_compile=True) if model.jit_compile is True else differentiate
        self.variables = [v for m in self._output_losses for v in m.variables]
        if self._metrics is not None:
            self.variables += self._metrics.variables

    def zeros(self) -> list[tf.Tensor]:
        """The totals of no steps."""
        return [tf.zeros([]), tf.zeros([])] + [tf.zeros(v.shape, v.dtype) for v in self.variables]

    def train(self, batch, share=None) -> list[tf.Tensor]:
        """Takes one update on `batch`; returns its totals.

        Args:
          batch: `(x, y)` or `(x, y, sample_weight)`, this replica's part of the global batch.
          share: f32[], the fraction of the global batch in this part; None when there is one replica. Keras
            divides a loss by the number of replicas; the share corrects this where parts are of unequal size.
        """
        gradients, totals = self._gradients(batch, share)
        self.model.optimizer.apply(gradients, self.model.trainable_variables)
        return totals

    def _differentiate(self, batch, share):
        optimizer = self.model.optimizer
        with tf.GradientTape() as tape:
            loss, y_pred, output_losses = self._forward(batch, training=True)
            weighted = loss if share is None else loss * tf.cast(share * _replicas(), loss.dtype)
            scaled = optimizer.scale_loss(weighted)
        gradients = tape.gradient(scaled, [v.value for v in self.model.trainable_variables])
        return gradients, self._totals(batch, loss, y_pred, output_losses, share)

    def evaluate(self, batch, share=None) -> list[tf.Tensor]:
        """The totals of one batch, nothing updated. Arguments as for `train`."""
        loss, y_pred, output_losses = self._forward(batch, training=False)
        return self._totals(batch, loss, y_pred, output_losses, share)

    def _forward(self, batch, training: bool):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        model = self.model
        y_pred = model(x, training=training) if model._call_has_training_arg else model(x)
        # The losses of several outputs are tracked inside of compute_loss: catch them as tensors too.
        tracked = [v for m in self._output_losses for v in m.variables]
        if not tracked:
            return model._compute_loss(x, y, y_pred, weight, training=training), y_pred, []
        zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in tracked]
        with keras.StatelessScope(state_mapping=zeros) as scope:
            loss = model._compute_loss(x, y, y_pred, weight, training=training)
        return loss, y_pred, [scope.get_current_value(v) for v in tracked]

    def _totals(self, batch, loss, y_pred, output_losses, share) -> list[tf.Tensor]:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        examples = tf.cast(tf.shape(tf.nest.flatten(x)[0])[0], tf.float32)
        mean_loss = tf.cast(loss, tf.float32) * _replicas()  # Keras divided it
        totals = [mean_loss * examples, examples, *output_losses]
        if self._metrics is not None:
            zeros = [tf.zeros(v.shape, v.dtype) for v in self._metrics.variables]
            totals += self._metrics.stateless_update_state(zeros, y, y_pred, weight)
        if share is not None:  # a part that stands in for an empty one does not count
            totals = [tf.where(share > 0, t, tf.zeros_like(t)) for t in totals]
        return [tf.convert_to_tensor(t) for t in totals]

    def result(self, totals: list[np.ndarray]) -> dict[str, Any]:
        """What `keras.Model.fit` would log for these totals: loss, then the metrics by name."""
        loss, examples, *states = totals
        logs: dict[str, Any] = {"loss": float(loss / examples) if examples else float("nan")}
        states = [tf.cast(s, v.dtype) for s, v in zip(states, self.variables, strict=True)]
        for metric in self._output_losses:
            mine, states = states[: len(metric.variables)], states[len(metric.variables) :]
            logs[metric.name] = float(metric.stateless_result(mine))
        if self._metrics is not None:
            for name, value in self._metrics.stateless_result(states).items():
                value = np.asarray(value)
                logs[name] = float(value) if value.ndim == 0 else value
        return logs


def _replicas() -> int:
    """Replicas that take part in one update."""
    return tf.distribute.get_strategy().num_replicas_in_sync
