"""Keras's `validation_split`: the last rows of arrays are for the validation."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tf2dist.errors import UsageError
from tf2dist.input.make_adapter import is_arrays
from tf2dist.input.sparse_ragged_rows import cut_rows, has_tensor_rows, row_count


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
