"""The train step of a model that overrides `train_step` or `test_step`, with metrics that are not updated in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat import global_batch_custom_step
from tf2dist.compat.model import flat_results, single_metrics
from tf2dist.compat.stateless_scope import HeldBackScope
from tf2dist.execution.custom_train_step import check_log_shapes, check_logs, logs_of, trace_step, values_of
from tf2dist.execution.flat_logs import as_logs
from tf2dist.execution.metric_merges import MetricMerges, merge
from tf2dist.execution.metric_variables import set_variables


class CustomStepWithSums:
    """The model's own steps, for strategies whose variables several replicas or workers share. A `TrainStep`.

    A step updates its metrics by reading, adding and writing. Several at once would lose counts, so each step begins
    with metrics as they begin, and what it has brought them to is returned.

    The sums are the loss and the logs of the last step, a list of f32, the mean over the replicas, each by its slice's
    weight; then each metric variable in the model's order, merged over steps and replicas (`MetricMerges`).
    """

    sums_make_logs = True

    def __init__(self, model: keras.Model):
        self.model = model
        self.in_order = False
        self.optimizers: list[keras.optimizers.Optimizer] = []
        self._log_names: list[str] = []
        self._log_shapes: list[tf.TensorShape] = []
        self._metric_results: dict[str, Callable] = {}  # for logs that are a metric's result, by whatever name
        self._metric_merges = MetricMerges([])
        self._logs_are_metrics = False

    def build(self, method: str, batch) -> None:
        """Makes all variables that a step makes.

        Args:
          method: the name of the step: "train_step" or "test_step".
          batch: of `keras.KerasTensor`s.

        Raises:
          TrainingError: the loss is no scalar, or a log has not the same shape for all batches.
        """
        traced = trace_step(self.model, method, batch)
        check_logs(self.model, method, traced.logs)
        logs = flat_results(traced.logs)
        self._log_names, self._metric_results, self.optimizers = list(logs), traced.results, traced.optimizers
        self._log_shapes = [tf.TensorShape(getattr(value, "shape", ())) for value in logs.values()]
        self._metric_merges = MetricMerges(single_metrics(self.model))
        self._logs_are_metrics = set(logs) == set(flat_results(self.model.get_metrics_result()))
        self.in_order = any(map(self.is_last_value, logs))
        check_log_shapes(self.model, method, logs, join=True)

    def is_last_value(self, name: str) -> bool:
        """Whether this log is a value of the last batch rather than a metric's result."""
        return not self._logs_are_metrics and name not in self._metric_results

    @property
    def merges(self) -> Mapping[int, str]:
        """See `TrainStep`."""
        return {1 + len(self._log_names) + number: kind for number, kind in self._metric_merges.kinds.items()}

    @property
    def as_gradient_step(self) -> None:
        """See `TrainStep`. The step applies its gradients itself."""
        return None

    @property
    def log_names(self) -> list[str]:
        """Names of the logs, in the order of the sums behind the loss."""
        return self._log_names

    @property
    def metric_paths(self) -> list[str]:
        """Of the variables of metrics, in the order of the sums behind the logs."""
        return [v.path for v in self._metric_merges.variables]

    def reset(self) -> None:
        """Nothing to do: sums are kept by those who add them up."""

    def zero_sums(self) -> list[tf.Tensor]:
        """See `TrainStep`."""
        return [tf.zeros([]), *(tf.zeros(shape) for shape in self._log_shapes), *self._metric_merges.begin()]

    def update(self, batch, slice_weight=None) -> list[tf.Tensor]:
        """See `TrainStep`."""
        return self._run(self.model.train_step, batch, slice_weight)

    def evaluate(self, batch, slice_weight=None) -> list[tf.Tensor]:
        """See `TrainStep`."""
        return self._run(self.model.test_step, batch, slice_weight)

    def _run(self, step: Callable, batch, slice_weight) -> list[tf.Tensor]:
        begun, variables = self._metric_merges.begin(), self._metric_merges.variables
        with (
            HeldBackScope(zip(variables, begun, strict=True)) as scope,
            global_batch_custom_step.functions_inlined(),  # a trace of its own would keep the metrics of this one
            global_batch_custom_step.on_slice(slice_weight),
        ):
            logs = logs_of(self.model, step, batch, slice_weight)
        if list(logs) != self._log_names:
            raise ValueError(
                f"{step.__name__} of {type(self.model).__name__} returns {', '.join(logs)}, and returned "
                f"{', '.join(self._log_names)} before"
            )
        states = [
            tf.ensure_shape(tf.convert_to_tensor(state), v.shape)
            for state, v in zip(scope.values(), variables, strict=True)
        ]
        if slice_weight is not None:  # a slice that stands in for an empty one counts not
            begun = [tf.cast(b, state.dtype) for b, state in zip(begun, states, strict=True)]
            states = [tf.where(slice_weight > 0, state, b) for state, b in zip(states, begun, strict=True)]
        return values_of(logs, slice_weight) + states

    def repeat(self, step: Callable[[], list[tf.Tensor]], n) -> list[tf.Tensor]:
        """See `TrainStep`."""
        return keras.ops.fori_loop(0, n, lambda _, sums: self.add_sums(sums, step()), self.zero_sums())

    def add_sums(self, sums: Sequence, more: Sequence) -> list:
        """The later logs, and metrics added up."""
        first = 1 + len(self._log_names)
        return [*more[:first], *merge(self._metric_merges.kinds, sums[first:], more[first:])]

    def set_metrics(self, sums: Sequence[np.ndarray], strategy: tf.distribute.Strategy) -> None:
        """See `TrainStep`."""
        set_variables(self._metric_merges.variables, sums[1 + len(self._log_names) :], strategy)

    def logs(self, sums: Sequence[np.ndarray]) -> dict[str, Any]:
        """The model's metrics if the step returns those, else its last logs."""
        last, states = sums[1 : 1 + len(self._log_names)], sums[1 + len(self._log_names) :]
        held = [(v, tf.cast(state, v.dtype)) for v, state in zip(self._metric_merges.variables, states, strict=True)]
        with keras.StatelessScope(held):
            if self._logs_are_metrics:
                return as_logs(self.model.get_metrics_result())
            logs = dict(zip(self._log_names, last, strict=True))
            return as_logs(logs | {name: result() for name, result in self._metric_results.items() if name in logs})
