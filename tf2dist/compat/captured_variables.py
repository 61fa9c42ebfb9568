"""The variables that a traced function reads or writes, whoever holds them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import get_eager_safe_handle_data


@contextlib.contextmanager
def restored(function, but: Iterable[keras.Variable] = ()) -> Iterator[None]:
    """Afterwards the variables of a concrete function are what they were before, to the last bit.

    Args:
      but: variables that it does not write; they are not read, since they may be more than this process can hold.
    """
    saved = save(function, but)
    try:
        yield
    finally:
        restore(saved)


def save(function, but: Iterable[keras.Variable] = ()) -> list[tuple[tf.Tensor, np.ndarray]]:
    """Handles of the variables of a concrete function, but for some, with what these hold."""
    saved, left_out = [], {id(v.value.handle) for v in but}
    for handle in function.captured_inputs:
        if id(handle) in left_out:
            continue
        if handle.dtype == tf.resource and (data := get_eager_safe_handle_data(handle)).is_set:
            (held,) = data.shape_and_type
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.as_dtype(held.dtype))
            saved.append((handle, np.array(value.numpy())))
    return saved


def restore(saved: list[tuple[tf.Tensor, np.ndarray]]) -> None:
    """Gives variables back what they held."""
    for handle, value in saved:
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value))
