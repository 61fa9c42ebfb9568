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
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope

from tf2dist import shares, whole_gradients


class Outputs:
    """What a model puts out; it need not be compiled."""

    def __init__(self, model: keras.Model):
        self.model = model

    def predict(self, batch):
        """The model's outputs for the inputs of one batch."""
        return self.model.predict_step(batch)


class Steps(Outputs):
    """The step functions of a compiled, built model, and the sums that they return.

    `Totals`, the state that steps add up, is a flat list: the loss times its examples f32[], the examples f32[],
    then each metric variable in the model's order.
    """

    def __init__(self, model: keras.Model):
        super().__init__(model)
        # Metrics that are updated while the model and its loss are computed: the losses of several outputs, and
        # what layers measure by themselves.
        self._output_losses = model._compile_loss.metrics if model._compile_loss is not None else []
        self._metrics = model._compile_metrics
        known = [model._loss_tracker, self._metrics, *self._output_losses]
        self._inner = self._output_losses + [m for m in model.metrics if not any(m is k for k in known)]
        compiled = [] if self._metrics is None else [self._metrics]
        self.variables = [v for m in [*self._inner, *compiled] for v in m.variables]
        self._own_metrics = type(model).compute_metrics is not keras.Model.compute_metrics
        self._jit = model.jit_compile is True
        # XLA compiles what one replica computes; the exchange between replicas and the update stay outside of it.
        differentiate = self._differentiate
        self.differentiate = tf.function(differentiate, jit_compile=True) if self._jit else differentiate

    def begin(self) -> None:
        """Begins new sums; they are kept by who adds them up."""

    def zeros(self) -> list[tf.Tensor]:
        """The totals of no steps."""
        return [tf.zeros([]), tf.zeros([])] + [tf.zeros(v.shape, v.dtype) for v in self.variables]

    def train(self, batch, share=None) -> list[tf.Tensor]:
        """Takes one update on `batch`; returns its totals.

        Args:
          batch: `(x, y)` or `(x, y, sample_weight)`, this replica's part of the global batch.
          share: f32[], the fraction of the global batch in this part; None when there is one replica.
        """
        gradients, totals = self.differentiate(batch, share)
        whole_gradients.apply(self.model.optimizer, gradients, self.model.trainable_variables)
        return totals

    def _differentiate(self, batch, share):
        """The gradients of the part's contribution to the loss of the global batch, and the part's totals."""
        variables = [v.value for v in self.model.trainable_variables]
        with tf.GradientTape() as tape:
            if in_stateless_scope():  # they are tensors
                tape.watch(variables)
            loss, y_pred, inner = self._forward(batch, share, training=True)
            scaled = self.model.optimizer.scale_loss(tf.reduce_sum(loss))
        return tape.gradient(scaled, variables), self._totals(batch, loss, y_pred, inner, share)

    def evaluate(self, batch, share=None) -> list[tf.Tensor]:
        """The totals of one batch, nothing updated. Arguments as for `train`."""
        loss, y_pred, inner = self._forward(batch, share, training=False)
        return self._totals(batch, loss, y_pred, inner, share)

    def _call(self, x, training: bool):
        return self.model(x, training=training) if self.model._call_has_training_arg else self.model(x)

    def _forward(self, batch, share, training: bool):
        """The part's contribution to the loss, f32[], the outputs, and the state of the inner metrics."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        tracked = [v for m in self._inner for v in m.variables]
        state = [(v, tf.zeros(v.shape, v.dtype)) for v in tracked]

        def forward():
            y_pred = self._call(x, training)
            with shares.of_the_global_batch(share, collective=not self._jit):
                return self.model._compute_loss(x, y, y_pred, weight, training=training), y_pred

        if tracked:
            outer = get_stateless_scope()
            # Losses that layers add would be lost without collect_losses, and Keras asks the scope for whatever is
            # regularized.
            scope = keras.StatelessScope(state, collect_losses=True)
            held = {id(v): v._value for v in self.model.trainable_variables}
            held |= outer.state_mapping if outer is not None else {}
            scope.state_mapping = held | scope.state_mapping
            with scope:
                loss, y_pred = forward()
            inner = [scope.get_current_value(v) for v in tracked]
            inner = self._share_of_output_losses(inner, y_pred, share)
            held |= {id(v): scope.get_current_value(v) for v in tracked}
            for variable in self.model.variables:  # seeds and statistics, which the scope has held back
                value = scope.get_current_value(variable)
                if value is not None and value is not held.get(id(variable)):
                    variable.assign(value)
        else:
            (loss, y_pred), inner = forward(), []
        if share is not None:  # a part that stands in for an empty one brings no loss, whatever its reduction
            loss = tf.where(share > 0, loss, tf.zeros_like(loss))
        return loss, y_pred, inner

    def _share_of_output_losses(self, inner: list, y_pred, share) -> list:
        """Lets the losses of several outputs be means over global batches, as Keras logs them: not over examples."""
        if share is None or tf.nest.flatten(y_pred)[0].shape[0] is not None:
            return inner
        count = sum(len(m.variables) for m in self._output_losses)
        return [s * tf.cast(share, s.dtype) for s in inner[:count]] + inner[count:]

    def _totals(self, batch, loss, y_pred, inner, share) -> list[tf.Tensor]:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        examples = tf.cast(tf.shape(tf.nest.flatten(x)[0])[0], tf.float32)
        if share is None or loss.shape.rank:  # a loss that is not reduced is one value for each example
            loss = tf.cast(tf.reduce_mean(loss), tf.float32) * examples
        else:
            loss = tf.cast(loss, tf.float32) * tf.math.divide_no_nan(examples, share)
        totals = [loss, examples, *inner]
        compiled = self.variables[len(inner) :]
        zeros = [tf.zeros(v.shape, v.dtype) for v in compiled]
        if self._own_metrics:
            with keras.StatelessScope(list(zip(self.variables, [*inner, *zeros], strict=True))) as scope:
                self.model.compute_metrics(x, y, y_pred, sample_weight=weight)
            totals[2:] = [scope.get_current_value(v) for v in self.variables]
        elif self._metrics is not None:
            totals += self._metrics.stateless_update_state(zeros, y, y_pred, weight)
        if share is not None:  # a part that stands in for an empty one does not count
            totals = [tf.where(share > 0, t, tf.zeros_like(t)) for t in totals]
        return [tf.convert_to_tensor(t) for t in totals]

    def loop(self, step, n) -> list[tf.Tensor]:
        """The totals of `step()`, called `n` i32[] times. In a graph."""
        totals = self.zeros()
        for _ in tf.range(n):
            totals = self.combine(totals, step())
        return totals

    @staticmethod
    def combine(totals, more) -> list:
        """Totals of two executions together."""
        return [t + m for t, m in zip(totals, more, strict=True)]

    def result(self, totals: list[np.ndarray]) -> dict[str, Any]:
        """What `keras.Model.fit` would log for these totals: loss, then the metrics by name."""
        loss, examples, *states = totals
        logs: dict[str, Any] = {"loss": float(loss / examples) if examples else float("nan")}
        states = [tf.cast(s, v.dtype) for s, v in zip(states, self.variables, strict=True)]
        inner, compiled = {}, {}
        with keras.StatelessScope(list(zip(self.variables, states, strict=True))):
            for metric in self._inner:
                value = metric.result()
                inner |= value if isinstance(value, dict) else {metric.name: value}
            if self._metrics is not None:
                compiled = self._metrics.result()
            # Inside of the scope: a result may be one of the variables itself.
            results = {name: np.asarray(tf.convert_to_tensor(value)) for name, value in (compiled | inner).items()}
        for name, value in results.items():
            logs[name] = float(value) if value.ndim == 0 else value
        return logs
