"""Traces a custom `train_step` before training: what it creates and updates, and whether its batch can be sliced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tf2dist.compat import layer_losses
from tf2dist.compat.custom_step_state import set_here
from tf2dist.compat.global_batch_custom_step import added_loss, patches
from tf2dist.compat.model import all_metrics, flat_results
from tf2dist.compat.stateless_scope import OverlayScope, compute_output_spec
from tf2dist.compat.strategy_internals import without_other_replicas


@dataclass(frozen=True)
class StepTrace:
    """What was found out about a step.

    Attributes:
      logs: what it returns, with `keras.KerasTensor`s or numbers in it.
      results: for logs that are results of the model's metrics, functions that return the result, by the logs' names.
      optimizers: that it applies gradients with.
    """

    logs: Any
    results: dict[str, Callable]
    optimizers: list[keras.optimizers.Optimizer]


def trace(model: keras.Model, step: Callable, batch) -> StepTrace:
    """Makes all variables that a step of the user's own makes, without making an update.

    Args:
      batch: of `keras.KerasTensor`s.

    Raises:
      TrainingError: the step cannot run on slices.
    """
    updates, named, found = [], {}, None

    def run(batch):
        results = {}
        with _results_of(all_metrics(model), results):
            logs = _run_alone(model, step, batch, updates)
        for name, value in flat_results(logs).items() if isinstance(logs, dict) else ():
            get, _ = results.get(id(value), (None, None))
            if get is not None:
                named[name] = get
        return logs

    with _tracing(model):
        known = -1
        while known < len(model.metrics):  # the first call makes those for the losses of several outputs
            known = len(model.metrics)
            found = compute_output_spec(run, batch)
    for optimizer, variables in updates:  # some copy weights, which have values only now
        if not optimizer.built:
            optimizer.build(variables)
            optimizer.built = True
    return StepTrace(found, named, list({id(o): o for o, _ in updates}.values()))


def without_others(model: keras.Model, step: Callable, batch, variables: Sequence[keras.Variable] = ()) -> Any:
    """A concrete function of a batch and values that runs a step on this process alone, and makes no update.

    Args:
      batch: of `tf.TensorSpec`s.
      variables: that begin with the values that it is given, one each.

    Returns:
      A function that returns what the step has made of these variables, and its logs.
    """

    @tf.function(autograph=False)
    def run(batch, *values):
        with _tracing(model), OverlayScope(zip(variables, values, strict=True), model.variables) as scope:
            logs = _run_alone(model, step, batch, [])
        flat = [tf.convert_to_tensor(value) for value in flat_results(logs).values()] if isinstance(logs, dict) else []
        return [tf.convert_to_tensor(scope.value(v)) for v in variables], flat

    return run.get_concrete_function(batch, *(tf.TensorSpec(v.shape, v.dtype) for v in variables))


@contextlib.contextmanager
def _tracing(model: keras.Model) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch.applied())
        if model.distribute_strategy.num_replicas_in_sync > 1:
            stack.enter_context(set_here(sliced=model.distribute_strategy, means={}))
            stack.enter_context(layer_losses.kept_apart(added_loss))
        yield


def _run_alone(model: keras.Model, step: Callable, batch, updates: list):
    with (
        without_other_replicas(model.distribute_strategy),
        set_here(updates=updates, gradients={}, totals={}, graph=tf.compat.v1.get_default_graph()),
    ):
        return step(batch)


@contextlib.contextmanager
def _results_of(metrics: Sequence[keras.metrics.Metric], results: dict) -> Iterator[None]:
    """Puts what the metrics' `result` methods return into `results`: by its id, how to get it, and itself.

    (An id is its own only while it lives.) Not what a metric had come to before it was reset.
    """

    def note(metric):
        original, reset = metric.result, metric.reset_state
        noted: set[int] = set()

        def result():
            value = original()
            if isinstance(value, dict):
                found = {id(v): (lambda name=name: original()[name], v) for name, v in value.items()}
            else:
                found = {id(value): (original, value)}
            noted.update(found)
            results.update(found)
            return value

        def reset_state():
            for each in noted:
                # What it is stays alive, so that its id is that of nothing else.
                results[each] = None, results[each][1]
            reset()

        vars(metric).update(result=result, reset_state=reset_state)

    for metric in metrics:
        note(metric)
    try:
        yield
    finally:
        for metric in metrics:
            for name in ("result", "reset_state"):
                vars(metric).pop(name, None)
