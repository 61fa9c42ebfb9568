"""The train step of a model that overrides `train_step` or `test_step`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat import custom_step_trace, global_batch_custom_step
from tf2dist.compat.model import all_metrics, flat_results
from tf2dist.errors import TrainingError, UsageError
from tf2dist.execution.flat_logs import as_logs


class CustomTrainStep:
    """The model's own steps, for strategies whose replicas train in lockstep. A `TrainStep`.

    Metrics stay in the model's variables, which Keras sums over the replicas when they are read. Logs that are no
    metrics are those of the last step, the mean over the replicas, each by its slice's weight. So the metric sums here
    are not sums: they are the loss and the logs of the last step, a list of f32.
    """

    sums_make_logs = False
    in_order = True
    metric_paths: tuple[str, ...] = ()  # the sums have none of metrics

    def __init__(self, model: keras.Model):
        self.model = model
        self.optimizers: list[keras.optimizers.Optimizer] = []
        self._log_names: list[str] = []
        self._metric_results: dict[str, Callable] = {}  # for logs that are a metric's result, by whatever name

    def build(self, method: str, batch) -> None:
        """Makes all variables that a step makes.

        Args:
          method: the name of the step: "train_step" or "test_step".
          batch: of `keras.KerasTensor`s.

        Raises:
          ValueError: the step returns no dict.
          TrainingError: the loss is no scalar, or a log of several replicas has not the same shape for all batches.
        """
        traced = trace_step(self.model, method, batch)
        check_logs(self.model, method, traced.logs)
        logs = flat_results(traced.logs)
        check_log_shapes(self.model, method, logs, join=self.model.distribute_strategy.num_replicas_in_sync > 1)
        self._log_names = list(logs)
        self._metric_results |= traced.results
        self.optimizers = traced.optimizers

    def reset(self) -> None:
        """Resets the model's metrics."""
        self.model.reset_metrics()

    def zero_sums(self) -> list[tf.Tensor]:
        """See `TrainStep`."""
        return [tf.zeros([])]

    def update(self, batch, slice_weight=None) -> list[tf.Tensor]:
        """Runs the model's `train_step`; returns the values of its logs."""
        return self._run(self.model.train_step, batch, slice_weight)

    def evaluate(self, batch, slice_weight=None) -> list[tf.Tensor]:
        """Runs the model's `test_step`; returns the values of its logs."""
        return self._run(self.model.test_step, batch, slice_weight)

    def _run(self, step: Callable, batch, slice_weight) -> list[tf.Tensor]:
        states = [v for metric in all_metrics(self.model) for v in metric.variables]
        before = [] if slice_weight is None else [tf.identity(v.value) for v in states]
        with global_batch_custom_step.on_slice(slice_weight):
            logs = logs_of(self.model, step, batch, slice_weight)
        if slice_weight is not None:  # a slice that stands in for an empty one counts not
            for variable, value in zip(states, before, strict=True):
                variable.assign(tf.where(slice_weight > 0, variable.value, value))
        self._log_names = list(logs)
        return values_of(logs, slice_weight)

    def is_last_value(self, name: str) -> bool:
        """Whether this log is a value of the last batch rather than a metric's result."""
        is_results = set(self._log_names) == set(self.model.get_metrics_result())
        return not is_results and name not in self._metric_results

    @property
    def merges(self) -> Mapping[int, str]:
        """See `TrainStep`. What a model's own step returns is added up."""
        return {}

    @property
    def as_gradient_step(self) -> None:
        """See `TrainStep`. The step applies its gradients itself."""
        return None

    @property
    def log_names(self) -> list[str]:
        """Names of the logs of the step that was traced last, in the order of the sums behind the loss."""
        return self._log_names

    def repeat(self, step: Callable[[], list[tf.Tensor]], n) -> list[tf.Tensor]:
        """Calls `step()` `n` i32[] times; returns the logs of the last call. In a graph."""
        return keras.ops.fori_loop(1, n, lambda number, last: step(), step())

    def add_sums(self, sums: Sequence, more: Sequence) -> list:
        """Returns the later logs."""
        return list(more)

    def set_metrics(self, sums: Sequence[np.ndarray], strategy: tf.distribute.Strategy) -> None:
        """Nothing to do: the step has updated them."""

    def logs(self, sums: Sequence[np.ndarray]) -> dict[str, Any]:
        """The model's metrics if the step returns those, else its last logs."""
        logs = self.model.get_metrics_result()
        if set(self._log_names) != set(logs):
            logs = dict(zip(self._log_names, sums[1:], strict=False))
            logs |= {name: result() for name, result in self._metric_results.items() if name in logs}
        return as_logs(logs)


def trace_step(model: keras.Model, method: str, batch) -> custom_step_trace.StepTrace:
    """Makes all variables that a step makes, and finds out about it what can be known before it runs.

    Args:
      method: the name of the step: "train_step" or "test_step".
      batch: of `keras.KerasTensor`s.
    """
    any_size = batch
    if model.distribute_strategy.num_replicas_in_sync > 1:
        any_size = tf.nest.map_structure(lambda t: keras.KerasTensor(_of_any_size(t.shape), t.dtype), batch)
    try:
        return custom_step_trace.trace(model, getattr(model, method), any_size)
    except (TypeError, ValueError) as error:
        if any(a.shape != b.shape for a, b in zip(tf.nest.flatten(any_size), tf.nest.flatten(batch), strict=True)):
            raise TrainingError(
                f"{method} of {type(model).__name__} does not take batches of any size, and each replica has a part "
                f"of a batch: use keras.ops.shape(x)[0] for x.shape[0], or strategy one ({error})"
            ) from error
        raise


def logs_of(model: keras.Model, step: Callable, batch, slice_weight) -> dict[str, Any]:
    """Runs a step of the user's own; returns its logs, those of a slice as means over it.

    Inside of `global_batch_custom_step.on_slice`.
    """
    logs = step(batch if slice_weight is None else tf.nest.map_structure(_as_of_any_size, batch))
    check_logs(model, step.__name__, logs)
    return {name: global_batch_custom_step.as_mean(value) for name, value in flat_results(logs).items()}


def check_logs(model: keras.Model, method: str, logs) -> None:
    """Raises ValueError for what a step returned if it is no dict."""
    if not isinstance(logs, dict):
        raise UsageError(f"{method} of {type(model).__name__} must return a dict, found {logs!r}")


def check_log_shapes(model: keras.Model, method: str, logs: Mapping[str, Any], *, join: bool) -> None:
    """Raises TrainingError for a loss that is no scalar, and for logs that replicas or workers cannot join.

    Args:
      join: do several replicas or workers join them?
    """
    for name, value in logs.items():
        shape = tf.TensorShape(getattr(value, "shape", ()))
        wrong = ""
        if name == "loss" and shape.rank:
            wrong = "no scalar: log its mean"
        elif join and not shape.is_fully_defined():
            wrong = "not the same for all batches: log a mean, or use strategy one"
        if wrong:
            raise TrainingError(f"{method} of {type(model).__name__} logs {name} with shape {shape}, which is {wrong}")


def values_of(logs: Mapping[str, Any], slice_weight) -> list[tf.Tensor]:
    """The loss, or 0 if it is not in the logs, and the logs, f32; those of a slice by its weight."""
    values = [tf.cast(t, tf.float32) for t in (logs.get("loss", 0.0), *logs.values())]
    if slice_weight is None:
        return values
    return [tf.where(slice_weight > 0, slice_weight * v, tf.zeros_like(v)) for v in values]


def _of_any_size(shape) -> list[int | None]:
    return [None, *shape[1:]] if len(shape) else []


def _as_of_any_size(rows):
    """Hides the static size of a slice from the graph, so that a step does not divide by it."""
    if not isinstance(rows, tf.Tensor) or not rows.shape.rank or rows.shape[0] is None:
        return rows
    return tf.raw_ops.PlaceholderWithDefault(input=rows, shape=_of_any_size(rows.shape))
