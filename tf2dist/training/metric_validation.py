"""Metrics that do not add up over batches, or over slices of a batch, are refused, once they were tried."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat import captured_variables, custom_step_trace
from tf2dist.compat.global_batch_loss import metrics_of_slice
from tf2dist.compat.model import (
    all_metrics,
    call,
    compiled_metrics,
    compute_loss,
    is_function_of_a_batch,
    is_of_keras,
    layer_metrics,
    overrides_compute_metrics,
    single_metrics,
)
from tf2dist.errors import UsageError
from tf2dist.execution.custom_step_with_sums import CustomStepWithSums
from tf2dist.execution.custom_train_step import CustomTrainStep
from tf2dist.execution.metric_merges import MetricMerges, merge, states_after_reset
from tf2dist.training.loss_validation import computes_in_16_bits, output_spec
from tf2dist.training.trial_rows import made_up

_CUT = 1
_SIZES = [0.2, 1.5, 1.0]  # of rows; those that are alike would show nothing
_STATES = (2.0, 1000.0, -1000.0)  # from which metrics are tried
_DEPENDS = "what a batch brings depends on what came before"
_DRAWS = 3  # of rows: by accident one may show nothing either


def check_metrics(model: keras.Model, spec) -> None:
    """Raises ValueError for metrics whose state does not add up.

    Tries those of other makers than Keras on two rows of zeros, from different states.
    """
    _check_forward_metrics(model, spec)
    if compiled_metrics(model) is None:
        return
    metrics = [m for m in compiled_metrics(model).metrics if not is_of_keras(m)]
    if not metrics:
        return
    _check_begin_at_zero(metrics)
    with tf.device("/cpu:0"), contextlib.suppress(tf.errors.OpError, TypeError):  # rows of zeros may make no sense
        _, y, weight = keras.utils.unpack_x_y_sample_weight(tf.nest.map_structure(_zeros, spec))
        y_pred = tf.nest.map_structure(_zeros, output_spec(model, spec))
        compiled = compiled_metrics(model)
        merges = MetricMerges(compiled.metrics)
        begin = [t.numpy() for t in merges.begin()]
        brought = [np.asarray(s) for s in compiled.stateless_update_state(begin, y, y_pred, weight)]
        for state in _STATES:
            begun = merge(merges.kinds, begin, [np.full_like(s, state) for s in begin])
            after = compiled.stateless_update_state(begun, y, y_pred, weight)
            expected = merge(merges.kinds, begun, brought)
            apart = [not np.allclose(a, e) for a, e in zip(after, expected, strict=True)]
            for metric in metrics:
                mine = {id(v) for v in metric.variables}
                if any(wrong and id(v) in mine for wrong, v in zip(apart, compiled.variables, strict=True)):
                    raise UsageError(_no_sum_message(metric, _DEPENDS))
    _check_what_is_said(model, spec, [m for m in metrics if MetricMerges([m]).kinds])


def _check_what_is_said(model: keras.Model, spec, metrics: list[keras.metrics.Metric]) -> None:
    """Raises ValueError for metrics of `compile` with `state_merges` to which two batches bring something else."""
    apart: set[int] = set()
    for draw in range(_DRAWS if metrics else 0):
        with tf.device("/cpu:0"), contextlib.suppress(Exception), _failing_alone(metrics):
            apart |= _differ_on_batches(model, spec, draw)
    for metric in metrics:
        if apart & {id(v) for v in metric.variables}:
            raise UsageError(_no_sum_message(metric, _DEPENDS))


def _differ_on_batches(model: keras.Model, spec, draw: int) -> set[int]:
    """Ids of variables of metrics that two batches do not bring to what they bring them to apart, merged."""
    compiled = compiled_metrics(model)
    assert compiled is not None
    _, y, weight = keras.utils.unpack_x_y_sample_weight(spec)
    first, second = (made_up((y, output_spec(model, spec), weight), _SIZES, 2 * draw + n) for n in (0, 1))
    merges = MetricMerges(compiled.metrics)
    to_arrays = lambda states: [keras.ops.convert_to_numpy(s) for s in states]  # noqa: E731
    alone, again, other = (
        to_arrays(compiled.stateless_update_state(merges.begin(), *b)) for b in (first, first, second)
    )
    both = to_arrays(compiled.stateless_update_state(alone, *second))
    close = functools.partial(np.allclose, rtol=1e-3, atol=1e-5, equal_nan=True)
    found = zip(merges.variables, alone, again, both, merge(merges.kinds, alone, other), strict=True)
    return {id(v) for v, a, b, one, another in found if close(a, b) and not close(one, another)}


def _check_begin_at_zero(metrics: Sequence[keras.metrics.Metric]) -> None:
    for metric in metrics:
        kinds = MetricMerges([metric]).kinds
        check_states_are_numbers([metric])
        if any(np.any(s) for n, s in enumerate(states_after_reset(metric)) if n not in kinds):
            raise UsageError(_no_sum_message(metric, "it does not begin at zero"))


def check_states_are_numbers(metrics: Sequence[keras.metrics.Metric]) -> None:
    """Raises ValueError for metrics with a state that is true or false."""
    for metric in metrics:
        for variable in metric.variables:
            if keras.backend.standardize_dtype(variable.dtype) == "bool":
                raise UsageError(_no_sum_message(metric, f"its {variable.name!r} is true or false, and no number"))


def _check_forward_metrics(model: keras.Model, spec) -> None:
    """As `check_metrics`, for those that layers, losses and the model itself update."""
    metrics = [m for m in layer_metrics(model) if not is_of_keras(m)]
    if not metrics:
        return
    _check_begin_at_zero(metrics)
    apart: set[int] = set()
    with tf.device("/cpu:0"), contextlib.suppress(Exception):  # rows of zeros may make no sense
        apart = _depend_on_state(model, spec, metrics)
    for metric in metrics:
        if apart & {id(v) for v in metric.variables}:
            raise UsageError(_no_sum_message(metric, _DEPENDS))


def check_metrics_of_custom_step(step: CustomStepWithSums | CustomTrainStep, method: str, spec) -> None:
    """As `check_metrics`, for those that a step of the user's own updates, and for its logs.

    A log may be what a metric has come to, but not be computed from it: in the step that is what one replica has seen,
    or one step of a worker.

    Args:
      method: the name of the step: "train_step" or "test_step".
    """
    model, metrics = step.model, single_metrics(step.model)
    begin_at_zero = isinstance(step, CustomStepWithSums)
    if not begin_at_zero and (merged := [m for m in metrics if MetricMerges([m]).kinds]):
        raise UsageError(
            f"{method} of {type(model).__name__} updates metrics in their variables, which several replicas add up, "
            f"and metric {merged[0].name} ({type(merged[0]).__name__}) has state_merges"
        )
    if begin_at_zero:
        _check_begin_at_zero([m for m in metrics if not is_of_keras(m)])
    variables = [v for m in metrics for v in m.variables]
    apart: set[int] = set()
    names: list[str] = []
    with tf.device("/cpu:0"), contextlib.suppress(Exception):  # rows of zeros may make no sense
        rows = tf.nest.map_structure(_zeros, spec)
        specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), rows)
        run = custom_step_trace.without_others(model, getattr(model, method), specs, variables)
        logs: list[list[np.ndarray]] = []

        def after(begun: list[tf.Tensor]) -> list[np.ndarray]:
            states, values = run(*tf.nest.flatten(rows), *begun)
            logs.append([t.numpy() for t in values])
            return [t.numpy() for t in states]

        with captured_variables.restored(run, model.variables):  # a step may write to what Keras does not know
            apart = _apart(MetricMerges(metrics), after)
        of_zeros, again, *others = ([np.asarray(t, np.float64) for t in values] for values in logs)
        for number, name in enumerate(step.log_names):
            first, second, *rest = (np.nan_to_num(values[number]) for values in (of_zeros, again, *others))
            differs = any(not np.allclose(first, each, rtol=1e-3) for each in rest)
            if step.is_last_value(name) and np.allclose(first, second) and differs:
                names.append(name)
    for metric in metrics if begin_at_zero else ():
        if apart & {id(v) for v in metric.variables}:
            raise UsageError(_no_sum_message(metric, _DEPENDS))
    if names:
        raise UsageError(
            f"{method} of {type(model).__name__} computes log {names[0]} from what a metric has come to, and replicas "
            "and workers each see a part of the data: log a metric's result as it is, or use a metric that computes "
            "this in its `result`, or strategy one"
        )


def _apart(merges: MetricMerges, after: Callable[[list[tf.Tensor]], list[np.ndarray]]) -> set[int]:
    """Returns ids of the variables whose increment, as `after` computes it, depends on their value before."""

    def begun(state: float) -> list[tf.Tensor]:
        # Another one in each, since the same one leaves their quotients as they are, where these are 1.
        filled = [tf.cast(tf.fill(t.shape, state * (1.0 + n % 7)), t.dtype) for n, t in enumerate(merges.begin())]
        return merge(merges.kinds, merges.begin(), filled)

    brought, again, apart = after(merges.begin()), after(merges.begin()), set()
    for state in _STATES:
        begin = begun(state)
        expected = merge(merges.kinds, [t.numpy() for t in begin], brought)
        for variable, value, right, first, second in zip(
            merges.variables, after(begin), expected, brought, again, strict=True
        ):
            # Where random numbers without a seed bring something else each time, nothing is found out.
            if np.allclose(first, second) and not np.allclose(value, right):
                apart.add(id(variable))
    return apart


def _depend_on_state(model: keras.Model, spec, metrics: Sequence[keras.metrics.Metric]) -> set[int]:
    """Returns ids of the metric variables whose increment by a batch depends on their value before."""
    variables = [v for m in metrics for v in m.variables]
    others = [v for m in all_metrics(model) if not any(m is k for k in metrics) for v in m.variables]
    x, y, weight = keras.utils.unpack_x_y_sample_weight(tf.nest.map_structure(_zeros, spec))

    def after(begun: list[tf.Tensor], training: bool) -> list[np.ndarray]:
        held = [*zip(variables, begun, strict=True), *((v, tf.zeros(v.shape, v.dtype)) for v in others)]
        with keras.StatelessScope(held) as scope:  # seeds stay as they are for the next time
            y_pred = call(model, x, training=training)
            compute_loss(model, x, y, y_pred, weight, training=training)
            if overrides_compute_metrics(model):
                model.compute_metrics(x, y, y_pred, sample_weight=weight)
            return [keras.ops.convert_to_numpy(scope.get_current_value(v)) for v in variables]

    merges = MetricMerges(metrics)
    return set().union(*(_apart(merges, functools.partial(after, training=t)) for t in (True, False)))


def check_metrics_of_slices(model: keras.Model, spec) -> None:
    """Raises ValueError for metrics of a batch that cannot be had from slices of it, such as the root of a mean.

    A function that returns one number for a batch is taken for a mean over its examples. Here that is tried, on rows
    that are made up: where they make no sense to a metric, or where there are random numbers in it, nothing is found
    out.
    """
    compiled = compiled_metrics(model)
    if compiled is None:
        return
    functions = [m for m in compiled.metrics if is_function_of_a_batch(m)]
    own = [m for m in compiled.metrics if not is_of_keras(m)]
    apart: set[int] = set()
    for draw in range(_DRAWS if functions or own else 0):
        with tf.device("/cpu:0"), contextlib.suppress(Exception), _failing_alone([*functions, *own]):
            apart |= _differ_on_slices(model, spec, draw)
    for metric in [*functions, *own]:
        if not apart & {id(v) for v in metric.variables}:
            continue
        if metric in own:
            raise UsageError(_no_sum_message(metric, "a batch brings something else than its parts do together"))
        raise UsageError(
            f"the value of metric {metric.name} for a batch is not the mean of those for its parts, and several "
            "replicas or workers each see one of them: have it return a value for each example, or use a "
            "keras.metrics.Metric that keeps sums, as RootMeanSquaredError does"
        )


@contextlib.contextmanager
def _failing_alone(metrics: list[keras.metrics.Metric]) -> Iterator[None]:
    """Ignores what these metrics raise for made-up rows, so that the others are tried all the same."""

    def attempt(update_state: Callable, *args, **kwargs) -> None:
        with contextlib.suppress(Exception):
            update_state(*args, **kwargs)

    metrics = list({id(m): m for m in metrics}.values())
    try:
        for metric in metrics:
            metric.update_state = functools.partial(attempt, metric.update_state)
        yield
    finally:
        for metric in metrics:
            vars(metric).pop("update_state", None)


def _differ_on_slices(model: keras.Model, spec, draw: int) -> set[int]:
    """Ids of variables of metrics to which a batch brings something else than its slices do together."""
    compiled = compiled_metrics(model)
    _, y, weight = keras.utils.unpack_x_y_sample_weight(spec)
    rows = made_up((y, output_spec(model, spec), weight), _SIZES, draw)
    merges = MetricMerges(compiled.metrics)

    def brought_by(part: slice, share: float) -> list[np.ndarray]:
        of_part = tf.nest.map_structure(lambda t: None if t is None else t[part], rows)
        with metrics_of_slice(tf.constant(share, tf.float32)):
            return [keras.ops.convert_to_numpy(v) for v in compiled.stateless_update_state(merges.begin(), *of_part)]

    close = functools.partial(np.allclose, rtol=2e-2 if computes_in_16_bits(model) else 1e-4, atol=1e-6)
    share = _CUT / len(_SIZES)
    whole, turned = brought_by(slice(None), 1.0), brought_by(slice(None, None, -1), 1.0)
    first, rest = brought_by(slice(_CUT), share), brought_by(slice(_CUT, None), 1 - share)
    found = zip(compiled.variables, whole, turned, merge(merges.kinds, first, rest), strict=True)
    return {id(v) for v, all_rows, again, both in found if close(all_rows, again) and not close(all_rows, both)}


def _no_sum_message(metric: keras.metrics.Metric, why: str) -> str:
    return (
        f"the state of metric {metric.name} ({type(metric).__name__}) does not add up: {why}; replicas and workers "
        "each see a part of the data, so a metric must sum over it (keep sums and counts, and combine them in result), "
        'or have an attribute state_merges that says "max" or "min" for the name of a variable'
    )


def _zeros(spec):
    return tf.zeros([2 if d is None else d for d in spec.shape], spec.dtype)
