"""How the states to which several replicas, workers and steps have brought a metric become one state."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat.model import parts_of_metric
from tf2dist.errors import UsageError

_ATTRIBUTE = "state_merges"
# Sums of peers are made in float64, which does not hold all wider integers; and collectives send no narrower ones, no
# booleans and no bfloat16.
_DTYPES = ("float16", "float32", "float64", "int32")
_MERGES = {"max": (np.maximum, tf.maximum), "min": (np.minimum, tf.minimum)}


class MetricMerges:
    """How the states of these metrics' variables are merged, and what they begin with.

    States are added up, and begin at zero, but where a metric has an attribute `state_merges`, a dictionary from names
    of its variables to "max", "min" or "sum": then the state is the largest or the smallest, and begins as
    `reset_state` leaves it. A metric in another one says so itself.

    Attributes:
      variables: of all metrics, in their order.
      kinds: of the variables that are not added up, by position: "max" or "min".

    Raises:
      UsageError: a `state_merges` is no such dictionary, or a metric has no such variable, or one of another dtype than
        float16, float32, float64 or int32, or `reset_state` leaves it as it was.
    """

    def __init__(self, metrics: Sequence[keras.metrics.Metric]) -> None:
        self.variables = [v for m in metrics for v in m.variables]
        kinds: dict[int, str] = {}
        self._beginnings: dict[int, np.ndarray] = {}  # by id of the variable
        for metric in metrics:
            if found := _kinds(metric):
                kinds |= found
                self._beginnings |= _beginnings(metric, found)
        self.kinds = {n: kinds[id(v)] for n, v in enumerate(self.variables) if id(v) in kinds}

    def begin(self) -> list[tf.Tensor]:
        """The states before any batch."""
        return [
            tf.constant(self._beginnings[id(v)], v.dtype) if number in self.kinds else tf.zeros(v.shape, v.dtype)
            for number, v in enumerate(self.variables)
        ]


def merge(kinds: Mapping[int, str], states: Sequence[Any], more: Sequence[Any]) -> list:
    """Two lists of states, arrays or tensors, as one: sums, and the largest or smallest where `kinds` says so."""
    return [_merged(kinds.get(n), a, b) for n, (a, b) in enumerate(zip(states, more, strict=True))]


def merge_all(kinds: Mapping[int, str], states: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """As `merge`, for any number of lists of tensors."""
    return [
        functools.reduce(functools.partial(_merged, kinds[n]), each) if n in kinds else tf.add_n(each)
        for n, each in enumerate(zip(*states, strict=True))
    ]


def _merged(kind: str | None, a, b):
    if kind is None:
        return a + b
    for_arrays, for_tensors = _MERGES[kind]
    return for_arrays(a, b) if isinstance(a, (np.ndarray, np.generic)) else for_tensors(a, b)


def _kinds(metric: keras.metrics.Metric) -> dict[int, str]:
    """Of the variables that the metric, and those in it, say are not added up, "max" or "min", by id."""
    variables, inner = parts_of_metric(metric)
    found = {key: kind for each in inner for key, kind in _kinds(each).items()}
    declared = getattr(metric, _ATTRIBUTE, None)
    if not declared:
        return found
    who = f"{_ATTRIBUTE} of metric {metric.name} ({type(metric).__name__})"
    if not isinstance(declared, Mapping) or any(kind not in ("sum", *_MERGES) for kind in declared.values()):
        raise UsageError(f'{who} is {declared!r}: it must say "sum", "max" or "min" for names of its variables')
    names = {v.name for v in variables}
    if unknown := [name for name in declared if name not in names]:
        raise UsageError(f"{who} names {unknown[0]!r}, and its variables are {', '.join(sorted(names)) or 'none'}")
    for variable in variables:
        if (kind := declared.get(variable.name, "sum")) != "sum":
            if keras.backend.standardize_dtype(variable.dtype) not in _DTYPES:
                raise UsageError(f"{who} names {variable.name!r} of dtype {variable.dtype}: use {' or '.join(_DTYPES)}")
            found[id(variable)] = kind
    return found


def _beginnings(metric: keras.metrics.Metric, kinds: Mapping[int, str]) -> dict[int, np.ndarray]:
    """What the variables in `kinds` begin with, by id."""
    found: dict[int, np.ndarray] = {}
    for variable, one, other in zip(
        metric.variables, states_after_reset(metric), states_after_reset(metric, 2), strict=True
    ):
        if id(variable) in kinds:
            if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
                raise UsageError(
                    f"{_ATTRIBUTE} of metric {metric.name} ({type(metric).__name__}) names {variable.name!r}, and "
                    "reset_state leaves it as it is: it must assign what the variable begins with"
                )
            found[id(variable)] = one
    return found


def states_after_reset(metric: keras.metrics.Metric, before: int = 1) -> list[np.ndarray]:
    """What `reset_state` would leave in the metric's variables, full of `before`; they stay as they are."""
    # It may hold what an epoch has left, which is over when the next one or an evaluation begins.
    full = [(v, keras.ops.cast(keras.ops.full(v.shape, before), v.dtype)) for v in metric.variables]
    with keras.StatelessScope(full) as scope:
        metric.reset_state()
    return [np.asarray(keras.ops.convert_to_numpy(scope.get_current_value(v))) for v in metric.variables]
