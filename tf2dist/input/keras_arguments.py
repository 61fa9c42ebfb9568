"""Keras's arguments for data, `x`, `y` and `sample_weight`, as the one thing that adapters take."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tf2dist.errors import UsageError
from tf2dist.input.make_adapter import is_arrays, takes_batch_size
from tf2dist.input.tensor_rows import cut_rows, has_tensor_rows, row_count


def as_data(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """Returns `x` by itself, or the tuple `(x, y)` or `(x, y, sample_weight)`.

    Raises:
      ValueError: there is no `x`, or it is no array and has labels and weights of its own.
    """
    if x is None:
        raise UsageError(
            "x is None: give arrays, a tf.data.Dataset, tf2dist.Examples, a PyDataset, a generator or a function"
        )
    if y is None and sample_weight is None:
        return x
    if not takes_batch_size(x):
        given = "y" if y is not None else "sample_weight"
        raise UsageError(
            f"{given} is for arrays, found x of type {type(x).__name__}, whose batches hold x, y and weights"
        )
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def split_rows(data: Any, fraction: float) -> tuple[Any, Any]:
    """Cuts arrays as `validation_split` does: what to train on, and the last rows to validate with.

    Args:
      data: nested arrays, each of n rows.
      fraction: of the rows, those to validate with.

    Raises:
      ValueError: these are no arrays, or one of the two would be empty.
    """
    if not (is_arrays(data) or has_tensor_rows(data)):
        raise UsageError(
            f"validation_split is for arrays, found {type(data).__name__}: give validation_data, a Dataset's by take "
            "and skip"
        )
    rows = row_count(data)
    at = math.floor(rows * (1.0 - fraction))
    if not 0 < at < rows:
        raise UsageError(f"validation_split={fraction} cuts {rows} examples into {at} to train on and {rows - at}")
    first = tf.nest.map_structure(lambda a: None if a is None else cut_rows(a, 0, at), data)
    last = tf.nest.map_structure(lambda a: None if a is None else cut_rows(a, at, rows), data)
    return first, (last,) if isinstance(last, list) else last  # a list by itself is several inputs
