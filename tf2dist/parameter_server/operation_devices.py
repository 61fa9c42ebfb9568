"""Devices for operations that nobody has placed: each is where most of what it reads is."""

from __future__ import annotations

import contextlib
import math

import tensorflow as tf

_ROWS = 1000  # taken for a number of rows that is not known


def where_most_comes_from(default: str) -> contextlib.AbstractContextManager[None]:
    """A context in which each operation of a graph is on the device of its largest input; `default` if it has none.

    So what is computed of a gradient stays where it is, also in conditions and loops.
    """

    def choose(operation) -> str:
        if operation.type == "Placeholder":  # it stands for something of another graph
            return ""
        if operation.device:  # what was said inside counts
            said = tf.DeviceSpec.from_string(operation.device)
            return tf.DeviceSpec.from_string(default).make_merged_spec(said).to_string() or default
        known = [(_size(tensor), device) for tensor in operation.inputs if (device := _device_of(tensor))]
        return max(known, default=(0, default), key=lambda pair: pair[0])[1]

    return tf.compat.v1.get_default_graph().device(choose)


def _size(tensor) -> int:
    sizes = tensor.shape.as_list() if tensor.shape.rank is not None else [None]
    return math.prod(_ROWS if size is None else size for size in sizes)


def _device_of(tensor) -> str:
    """The device of a tensor, or of what it stands for in the graph of a condition, a loop or a function."""
    if tensor.device or not hasattr(tensor.graph, "captures"):
        return tensor.device
    return next((_device_of(outer) for outer, inner in tensor.graph.captures if inner is tensor), "")
