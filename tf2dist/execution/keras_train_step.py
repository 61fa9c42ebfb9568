"""The train step of a compiled Keras model: loss, gradients, update and metric sums of one slice of a batch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat import global_batch_gradients, global_batch_loss, layer_losses, synchronized_batch_normalization
from tf2dist.compat import model as keras_model
from tf2dist.compat.replica_sparse_gradients import add_up
from tf2dist.compat.stateless_scope import OverlayScope, in_stateless_scope
from tf2dist.errors import UsageError
from tf2dist.execution.flat_logs import as_logs
from tf2dist.execution.loss_fractions import Fraction, added, quotients, scaled
from tf2dist.execution.metric_merges import MetricMerges, merge, merge_all
from tf2dist.execution.metric_variables import set_variables
from tf2dist.execution.train_step_interface import GradientStep


class _Forward(NamedTuple):
    """The results of a forward pass on a slice.

    Attributes:
      loss: f32[], to differentiate; the mean over slices, by their weights, is the loss of the global batch.
      values: what is made of losses, each f32[]: the loss to log, and the states of the losses of several outputs.
      y_pred: the outputs.
      states: what the states of the layers' metrics become.
      others: the means in loss and values that are not over examples, where replicas cannot exchange sums.
      layer_losses: what layers have added, by layer and number.
    """

    loss: tf.Tensor
    values: list[tf.Tensor]
    y_pred: Any
    states: list
    others: list[global_batch_loss.OtherMean]
    layer_losses: layer_losses.Losses


class KerasTrainStep:
    """The steps of a model with Keras's own `train_step`, compiled and built. A `GradientStep`.

    Metric sums come from `keras.metrics.Metric.stateless_update_state`, starting from zeros; that holds for every
    metric whose state adds up, or says how it is merged (`MetricMerges`). They are a flat list: the loss times its
    examples f32[], the examples f32[], then each metric variable in the model's order.
    """

    sums_make_logs = True
    in_order = False

    def __init__(self, model: keras.Model, *, jit: bool | None = None):
        """As given: `jit` in place of the model's own `jit_compile`."""
        self.model = model
        self.optimizers: list[keras.optimizers.Optimizer] = [model.optimizer]
        # Losses that layers add which are sums over examples, by layer and number; whoever tries the model finds out.
        self.summed_layer_losses: set[layer_losses.Key] = set()
        # Metrics that are updated while the model and its loss are computed: the losses of several outputs, and
        # what layers measure by themselves.
        self._output_losses = keras_model.output_loss_metrics(model)
        self._forward_metrics = self._output_losses + keras_model.layer_metrics(model)
        self._states_of_losses = sum(len(m.variables) for m in self._output_losses)
        self._compiled_metrics = keras_model.compiled_metrics(model)
        compiled = [] if self._compiled_metrics is None else self._compiled_metrics.metrics
        self._merges = MetricMerges([*self._forward_metrics, *compiled])
        self._metric_variables = self._merges.variables
        self._jit_step = None
        if (model.jit_compile is True) if jit is None else jit:
            # XLA compiles what one replica computes; the exchange between replicas and the update stay outside of it.
            self._jit_step = tf.function(self.fractions, jit_compile=True, autograph=False)

    @property
    def metric_paths(self) -> list[str]:
        """The paths of the variables that the metric sums are of, behind the loss and the examples."""
        return [v.path for v in self._metric_variables]

    @property
    def as_gradient_step(self) -> GradientStep:
        """See `TrainStep`."""
        return self

    def reset(self) -> None:
        """Nothing to do: sums are kept by those who add them up."""

    def zero_sums(self) -> list[tf.Tensor]:
        """See `TrainStep`."""
        return [tf.zeros([]), tf.zeros([]), *self._merges.begin()]

    @property
    def merges(self) -> Mapping[int, str]:
        """See `TrainStep`."""
        return {2 + number: kind for number, kind in self._merges.kinds.items()}

    def update(self, batch, slice_weight=None) -> list[tf.Tensor]:
        """See `TrainStep`."""
        gradients, values, make_sums = self._gradients(batch, slice_weight)
        self.apply(gradients)
        # Afterwards, as in Keras: a metric of the user's may read a variable, such as the learning rate.
        return self._with_losses(make_sums(), values, slice_weight)

    def apply(self, gradients: Sequence) -> None:
        """See `GradientStep`."""
        global_batch_gradients.apply_gradients(self.model.optimizer, gradients, self.model.trainable_variables)

    def gradients(self, batch, slice_weight) -> tuple[list, list[tf.Tensor]]:
        """See `GradientStep`."""
        gradients, values, make_sums = self._gradients(batch, slice_weight)
        return gradients, self._with_losses(make_sums(), values, slice_weight)

    def _gradients(self, batch, slice_weight) -> tuple[list, list[tf.Tensor], Callable[[], list[tf.Tensor]]]:
        """Gradients, values that are made of losses, and what makes the metric sums."""
        if self._jit_step is not None:  # masks, attributes of tensors, do not leave what XLA compiles
            fractions, sums = self._jit_step(batch, slice_weight)
            make_sums = functools.partial(list, sums)
        else:
            fractions, outputs = self._fractions(batch, slice_weight, exchanges=True)
            make_sums = functools.partial(self._sums, batch, *outputs, slice_weight)
        first, *others = fractions  # the denominators of the first, the slices' weights, add up to 1
        values, gradients = first.values, first.gradients
        if others:
            context = tf.distribute.get_replica_context()
            totals = context.all_reduce(tf.distribute.ReduceOp.SUM, [f.denominator for f in others])
            values, gradients = quotients(fractions, [tf.ones([]), *totals])
        return gradients, values, make_sums

    def fractions(self, batch, slice_weight) -> tuple[list[Fraction], list[tf.Tensor]]:
        """See `GradientStep`."""
        fractions, outputs = self._fractions(batch, slice_weight, exchanges=False)
        return fractions, self._sums(batch, *outputs, slice_weight)

    def join(
        self, slices: Sequence[tuple[list[Fraction], list[tf.Tensor]]], lookups: Sequence[Sequence[int]]
    ) -> tuple[list, list[tf.Tensor]]:
        """See `GradientStep`."""
        sums = merge_all(self.merges, [sums for _, sums in slices])
        gradients, values = self._join_parts([fractions for fractions, _ in slices], lookups)
        return gradients, self._with_losses(sums, values, None)

    def _join_parts(
        self, slices: Sequence[list[Fraction]], lookups: Sequence[Sequence[int]]
    ) -> tuple[list, list[tf.Tensor]]:
        """Gradients and values of a global batch."""
        together = [
            Fraction(
                tf.add_n([f.denominator for f in parts]),
                [tf.add_n(ts) for ts in zip(*[f.values for f in parts], strict=True)],
                [
                    add_up(gs, most) if most and len(gs) > 1 else added(gs)
                    for most, *gs in zip(of_all, *[f.gradients for f in parts], strict=True)
                ],
            )
            for of_all, *parts in zip(lookups, *slices, strict=True)
        ]
        values, gradients = quotients(together, [f.denominator for f in together])
        for number, variable in enumerate(self.model.trainable_variables[: len(gradients)]):
            if variable.overwrite_with_gradient:  # its next value, of which the largest counts
                parts = [fractions[0].gradients[number] for fractions in slices]
                gradients[number] = functools.reduce(tf.maximum, parts)
        return gradients, values

    def _fractions(self, batch, slice_weight, exchanges: bool) -> tuple[list[Fraction], tuple[Any, list]]:
        """The parts of the loss, the first of which is what counts with the slice's weight; outputs and states."""
        variables = [v.value for v in self.model.trainable_variables]
        with tf.GradientTape(persistent=True) as tape:
            if in_stateless_scope():  # they are tensors
                tape.watch(variables)
            found = self._forward(batch, slice_weight, training=True, tape=None if exchanges else tape)
        weight = tf.ones([]) if slice_weight is None else slice_weight
        return self._parts(tape, found, weight, variables), (found.y_pred, found.states)

    def _parts(self, tape: tf.GradientTape, found: _Forward, weight: tf.Tensor, variables: Sequence) -> list[Fraction]:
        """The numerators and denominators of a slice, with gradients of these variables."""

        def gradients(value, factor):
            """Returns the gradients of `value`, a mean, times `factor`."""
            factor = self.model.optimizer.scale_loss(tf.cast(factor, value.dtype))
            return tape.gradient(value, variables, output_gradients=factor)

        rest, parts = found.values, []
        for other in found.others:
            factor = _slope(tape, found.loss, other.constant)
            shares = [_slope(tape, v, other.constant) * tf.cast(other.value, v.dtype) for v in found.values]
            rest = [r - s for r, s in zip(rest, shares, strict=True)]
            numerators = [tf.cast(other.weight, s.dtype) * s for s in shares]
            # Scaled afterwards: 16-bit gradients of a sum over many words would overflow.
            part = [scaled(g, other.weight) for g in gradients(other.value, factor)]
            parts.append(Fraction(tf.cast(other.weight, tf.float32), numerators, part))
        numerators = [tf.cast(weight, r.dtype) * r for r in rest]
        return [Fraction(weight, numerators, gradients(found.loss, weight)), *parts]

    def try_slices(self, slices: Sequence[tuple], leave_out: bool) -> tuple[tf.Tensor, list[dict]]:
        """The loss that slices would train with together, f32[], and what the layers of each have added to it.

        Args:
          slices: batches with their weights.
          leave_out: is a loss between examples left out (because the replicas will compute it together)?
        """
        parts, added_losses = [], []
        for batch, weight in slices:
            with tf.GradientTape(persistent=True) as tape:
                found = self._forward(batch, weight, training=False, tape=tape, leave_out=leave_out)
            parts.append(self._parts(tape, found, weight, []))
            added_losses.append(found.layer_losses)
        _, (loss, *_) = self._join_parts(parts, [[] for _ in parts[0]])
        return loss, added_losses

    def evaluate(self, batch, slice_weight=None) -> list[tf.Tensor]:
        """See `TrainStep`."""
        found = self._forward(batch, slice_weight, training=False)
        values = found.values
        if slice_weight is not None:
            values = [tf.cast(slice_weight, v.dtype) * v for v in values]
        sums = self._sums(batch, found.y_pred, found.states, slice_weight)
        return self._with_losses(sums, values, slice_weight)

    def _forward(
        self, batch, slice_weight, training: bool, tape: tf.GradientTape | None = None, *, leave_out: bool = False
    ) -> _Forward:
        """Computes the model and its loss.

        Args:
          tape: if the replicas cannot exchange sums.
          leave_out: see `try_slices`.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)

        def forward():
            with contextlib.ExitStack() as stack:
                of_slice = global_batch_loss.mean_of_slice(
                    slice_weight, tape, leave_out=leave_out, loss_metrics=self._output_losses
                )
                others = stack.enter_context(of_slice)
                added_losses = {}
                if slice_weight is not None:
                    added_losses = stack.enter_context(layer_losses.kept_apart(self._as_mean_of_slice))
                    stack.enter_context(synchronized_batch_normalization.over_slices())
                elif tf.distribute.get_strategy().num_replicas_in_sync > 1:  # one device of a worker that has several
                    stack.enter_context(global_batch_loss.of_whole_batch())
                y_pred = keras_model.call(self.model, x, training=training)
                loss = keras_model.compute_loss(self.model, x, y, y_pred, sample_weight, training=training)
            return loss, y_pred, others, added_losses

        tracked = [v for m in self._forward_metrics for v in m.variables]
        if tracked:
            begun = list(zip(tracked, self._merges.begin(), strict=False))  # theirs are the first
            with OverlayScope(begun, self.model.trainable_variables) as scope:
                loss, y_pred, others, added_losses = forward()
            states = [scope.value(v) for v in tracked]
            metrics = {id(v) for v in tracked}
            for variable, value in scope.written():  # seeds and statistics, held back by the scope
                if id(variable) not in metrics:
                    variable.assign(value)
        else:
            (loss, y_pred, others, added_losses), states = forward(), []
        # A loss that is not reduced is one value for each example: its sum is trained, and its mean is logged.
        values = [tf.cast(tf.reduce_mean(loss), tf.float32), *states[: self._states_of_losses]]
        by_example, loss = bool(loss.shape.rank), tf.reduce_sum(loss)
        if slice_weight is not None:
            loss = tf.math.divide_no_nan(loss, tf.cast(slice_weight, loss.dtype)) if by_example else loss
            rows = tf.nest.flatten(y_pred)[0].shape[0] or 1  # Keras weighs the losses of outputs by it if it knows it
            values[1:] = [v / rows for v in values[1:]]
            # A slice that stands in for an empty one has no loss, whatever its reduction.
            loss, *values = (tf.where(slice_weight > 0, v, tf.zeros_like(v)) for v in (loss, *values))
        return _Forward(loss, values, y_pred, states[self._states_of_losses :], others, added_losses)

    def _as_mean_of_slice(self, key: layer_losses.Key, loss: tf.Tensor) -> tf.Tensor:
        is_sum = layer_losses.is_of_each_example(loss) or key in self.summed_layer_losses
        return global_batch_loss.as_mean_of_slice(loss) if is_sum else loss

    def _sums(self, batch, y_pred, states, slice_weight) -> list[tf.Tensor]:
        """The metric sums of one slice, with zeros for what is made of losses."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        examples = tf.cast(tf.shape(tf.nest.flatten(x)[0])[0], tf.float32)
        begun = self._merges.begin()
        states = [*begun[: self._states_of_losses], *states]
        sums, rest = [tf.zeros([]), examples, *states], begun[len(states) :]
        with global_batch_loss.metrics_of_slice(slice_weight):
            if keras_model.overrides_compute_metrics(self.model):
                with keras.StatelessScope(list(zip(self._metric_variables, [*states, *rest], strict=True))) as scope:
                    self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
                sums[2:] = [scope.get_current_value(v) for v in self._metric_variables]
                kept = {id(v) for v in (*self._metric_variables, *keras_model.seed_states(self.model))}
                if written := [v.path for v in self.model.variables if id(v) in scope.state_mapping.keys() - kept]:
                    raise UsageError(
                        f"compute_metrics of {type(self.model).__name__} writes {written[0]}, and only metrics may be "
                        "written there where several replicas or workers each see a part of a batch"
                    )
            elif self._compiled_metrics is not None:
                sums += self._compiled_metrics.stateless_update_state(rest, y, y_pred, sample_weight)
        if slice_weight is not None:  # a slice that stands in for an empty one does not count
            sums = [
                tf.where(slice_weight > 0, t, tf.cast(z, t.dtype)) for t, z in zip(sums, self.zero_sums(), strict=True)
            ]
        sums = [tf.convert_to_tensor(t) for t in sums]
        for tensor, variable in zip(sums[2:], self._metric_variables, strict=True):
            tensor.set_shape(variable.shape)  # which metrics of Keras 3.10 leave open
        return sums

    def _with_losses(self, sums: Sequence, values: Sequence, slice_weight) -> list[tf.Tensor]:
        """Metric sums with the values that are made of losses; without a weight, sums are those of the global batch."""
        loss, *states = values
        return [loss * _global_batch_size(sums[1], slice_weight), sums[1], *states, *sums[2 + len(states) :]]

    def repeat(self, step: Callable[[], list[tf.Tensor]], n) -> list[tf.Tensor]:
        """See `TrainStep`."""
        return keras.ops.fori_loop(0, n, lambda _, sums: self.add_sums(sums, step()), self.zero_sums())

    def add_sums(self, sums: Sequence, more: Sequence) -> list:
        """See `TrainStep`."""
        return merge(self.merges, sums, more)

    def set_metrics(self, sums: Sequence[np.ndarray], strategy: tf.distribute.Strategy) -> None:
        """See `TrainStep`."""
        set_variables([*keras_model.loss_tracker(self.model).variables, *self._metric_variables], sums, strategy)

    def logs(self, sums: Sequence[np.ndarray]) -> dict[str, Any]:
        """See `TrainStep`."""
        loss, examples, *states = sums
        mean = float(loss / examples) if examples else float("nan")
        variables = [*keras_model.loss_tracker(self.model).variables, *self._metric_variables]
        states = [tf.cast(s, v.dtype) for s, v in zip(sums, variables, strict=True)]
        forward: dict[str, Any] = {}
        compiled: dict[str, Any] = {}
        with keras.StatelessScope(list(zip(variables, states, strict=True))):
            if keras_model.overrides_metrics_result(self.model):
                return as_logs(self.model.get_metrics_result())
            listed = {id(metric) for metric in self.model.metrics}  # a model's own `metrics` may leave some out
            for metric in self._forward_metrics:
                value = metric.result()
                forward |= value if isinstance(value, dict) else {metric.name: value}
            if self._compiled_metrics is not None and id(self._compiled_metrics) in listed:
                compiled = self._compiled_metrics.result()
            loss = {"loss": mean} if id(keras_model.loss_tracker(self.model)) in listed else {}
            # Inside of the scope: a result may be one of the variables itself.
            return as_logs(loss | compiled | forward)


def _slope(tape: tf.GradientTape, value: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
    """Returns the derivative of `value` by `of`, both f32[]."""
    found = tape.gradient(value, of)
    return tf.zeros_like(value) if found is None else tf.cast(tf.convert_to_tensor(found), value.dtype)


def _global_batch_size(examples: tf.Tensor, slice_weight: tf.Tensor | None) -> tf.Tensor:
    """Examples f32[] in the global batch of a slice with so many; 0 if it stands in for an empty one."""
    return examples if slice_weight is None else tf.math.divide_no_nan(examples, slice_weight)
