"""Batches that the coordinator reads for its workers: each is read once, and by one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf2dist.input.batch_groups import Group, nbytes


class SentBatches:
    """A stream that the coordinator reads, a few batches at a time, and sends with what is to be done with them.

    Batches have the numbers of the stream. Those that were sent are kept until they are known to be used, and may be
    sent again.

    Args:
      batches: the stream's.
      first: number of its first batch.

    Attributes:
      element_spec: of a batch.
    """

    def __init__(self, batches: tf.data.Dataset, first: int):
        self.element_spec: Any = batches.element_spec
        self._unread, self._next = iter(batches), first
        self._kept: dict[int, list[tf.Tensor]] = {}

    @property
    def kept(self) -> int:
        """How many batches were read and may still be needed."""
        return len(self._kept)

    def take(self, numbers: range) -> tuple[int, list[tf.Tensor], tf.Tensor]:
        """Returns how many of the first of these batches fit into one message, and the arguments of `single_batches`.

        Args:
          numbers: of batches that are kept, or are the next to be read.

        Raises:
          tf.errors.OutOfRangeError: there are no more.
        """
        group = Group()
        for number in numbers:
            batch = self._batch(number)
            size = sum(map(nbytes, batch or ()))
            if batch is None or not group.takes(batch, size):
                break
            group.add(batch, size)
        if not group:
            raise tf.errors.OutOfRangeError(None, None, "the data has ended")
        return len(group), *group.tensors()

    def _batch(self, number: int) -> list[tf.Tensor] | None:
        """The tensors of a batch; None where the stream has ended."""
        if number not in self._kept:
            assert number == self._next, f"batch {number} is not kept, and {self._next} is the next one"
            for batch in itertools.islice(self._unread, 1):
                self._kept[number] = tf.nest.flatten(batch, expand_composites=True)
                self._next += 1
        return self._kept.get(number)

    def forget(self, used: range) -> None:
        """Drops batches that were used."""
        for number in used:
            self._kept.pop(number, None)

    def forget_all_but(self, is_unused: Callable[[int], bool]) -> None:
        """Drops all batches but those whose numbers are unused."""
        self._kept = {number: batch for number, batch in self._kept.items() if is_unused(number)}
