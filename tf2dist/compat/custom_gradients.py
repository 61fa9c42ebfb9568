"""What functions with gradients of their own read beside their arguments.

A function under `tf.custom_gradient`, as `tf.recompute_grad` makes it, has gradients for its arguments and for
variables (tensorflow/python/ops/custom_gradient.py, `_graph_mode_decorator`). A tensor that it finds elsewhere gets
none, and a weight may be one while a worker computes a step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import custom_gradient

from tf2dist.compat.patching import Patch

_Place = tuple[int, str, int]
_BACKWARD = "inner_recompute_grad"  # of `tf.recompute_grad`: computes again what is noted already


class _Here(threading.local):
    places: Mapping[_Place, int] | None = None  # of the tensors that are looked for, with their numbers
    found: set[int]


_here = _Here()


@contextlib.contextmanager
def reads_noted(tensors: Sequence[tf.Tensor]) -> Iterator[set[int]]:
    """Yields a set, to which the numbers of those tensors are added that such functions read; in a graph.

    Only of functions that this thread calls inside.
    """
    outer = _here.places, getattr(_here, "found", set())
    _here.places, _here.found = {_place(tensor): number for number, tensor in enumerate(tensors)}, set()
    try:
        with _noting.applied():
            yield _here.found
    finally:
        _here.places, _here.found = outer


def _place(tensor: Any) -> _Place:
    return id(tensor.graph), tensor.op.name, tensor.value_index


def _graph_mode_decorator(f, args, kwargs):
    original = _noting.original("_graph_mode_decorator")
    if _here.places is None or getattr(f, "__name__", "") == _BACKWARD:
        return original(f, args, kwargs)

    def noted(*inner):
        result, gradient = f(*inner)
        _note(inner, result)
        return result, gradient

    return original(noted, args, kwargs)


def _note(arguments: Any, results: Any) -> None:
    """Walks back from results to arguments, and notes which of the tensors are met."""
    assert _here.places is not None
    seen = {_place(t) for t in _tensors(arguments)}
    left = _tensors(results)
    while left:
        tensor = left.pop()
        if (place := _place(tensor)) in seen:
            continue
        seen.add(place)
        if place in _here.places:
            _here.found.add(_here.places[place])
        left += _tensors(tensor.op.inputs)
        if tensor.op.type == "Placeholder":  # in a condition, a loop or a function
            left += _tensors([outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor])


def _tensors(structure: Any) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return [t for t in leaves if isinstance(t, tf.Tensor) and hasattr(t, "graph")]


_noting = Patch(custom_gradient, {"_graph_mode_decorator": _graph_mode_decorator})
