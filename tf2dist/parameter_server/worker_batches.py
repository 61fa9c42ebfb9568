"""What a worker makes its updates on: batches by their numbers, or those of an iterator as they come. In graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tf2dist.input.data_adapter import BatchMaker


class WorkerBatches(Protocol):
    """The batches of an execution, one after the other.

    Whoever takes them carries from one call to the next what is *ahead*: what is made of the next batch while a step is
    made on this one.
    """

    def begin(self, number: tf.Tensor) -> Any:
        """What is ahead before batch `number` i64[] is taken."""
        ...

    def take(self, ahead: Any, number: tf.Tensor, end: tf.Tensor, after: Sequence[tf.Tensor] = ()) -> tuple[Any, Any]:
        """Batch `number` i64[] of those before `end` i64[], and what is ahead then.

        One that may fail is taken when all of `after` is there: it would end what is under way.
        """
        ...


class IteratorBatches:
    """The next elements of a worker's iterator, whatever their numbers. A `WorkerBatches`.

    Args:
      iterator: yields them.
      convert: is called with each.
    """

    def __init__(self, iterator: Any, convert: Callable[[Any], Any]):
        self._iterator, self._convert = iterator, convert

    def begin(self, number: tf.Tensor) -> Any:
        """See `WorkerBatches`."""
        return ()

    def take(self, ahead: Any, number: tf.Tensor, end: tf.Tensor, after: Sequence[tf.Tensor] = ()) -> tuple[Any, Any]:
        """See `WorkerBatches`."""
        with tf.control_dependencies(after):
            return self._convert(next(self._iterator)), ()


class NumberedBatches:
    """Batches that follow from their numbers. A `WorkerBatches`.

    Args:
      maker: makes them.
      tensors: of which it does.
    """

    def __init__(self, maker: BatchMaker, tensors: Any):
        self._maker, self._tensors = maker, tensors

    def begin(self, number: tf.Tensor) -> Any:
        """See `WorkerBatches`."""
        return self._maker.make(self._tensors, number)

    def take(self, ahead: Any, number: tf.Tensor, end: tf.Tensor, after: Sequence[tf.Tensor] = ()) -> tuple[Any, Any]:
        """See `WorkerBatches`."""
        following = number + 1
        return ahead, tf.cond(following < end, lambda: self._maker.make(self._tensors, following), lambda: ahead)
