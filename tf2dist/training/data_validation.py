"""Data without an end or without batches is refused; what fails while it is read is said as the data's own error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tf2dist.errors import TrainingError, UsageError
from tf2dist.input.data_adapter import DataAdapter


@contextlib.contextmanager
def data_may_fail(data: DataAdapter) -> Iterator[None]:
    """Raises what was wrong with the data in place of TensorFlow's error; a TrainingError if it has ended early."""
    try:
        yield
    except tf.errors.OpError as error:
        data.raise_failure()
        if not isinstance(error, tf.errors.OutOfRangeError):
            raise
        raise TrainingError(
            "the dataset ran out early: it has fewer batches than it says or than steps asks for, or none at all"
        ) from None


def finite_steps(steps: int | None, name: str) -> int:
    """Returns the steps of a pass over data; `name` is the argument that bounds them.

    Raises:
      UsageError: there are endlessly many, or none.
    """
    if steps is None:
        raise UsageError(f"the data is endless: say how much of it to use with {name}")
    if not steps:
        raise UsageError("the data is empty: it has no batches")
    return steps
