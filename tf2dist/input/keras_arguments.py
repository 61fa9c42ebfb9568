"""Keras's arguments for data, `x`, `y` and `sample_weight`, as the one thing that adapters take."""

from __future__ import annotations

from typing import Any

from tf2dist.errors import UsageError
from tf2dist.input.make_adapter import takes_batch_size


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
