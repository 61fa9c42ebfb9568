"""Batches that the coordinator reads for its workers: each is read once, and by one process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf2dist.input.batch_groups import Group, nbytes

_READ_SECONDS = 0.5  # for one message; then what was read is sent


class SentBatches:
    """A stream that the coordinator reads, a few batches at a time, and sends with what is to be done with them.

    Batches have the numbers of the stream. Those that were sent are kept until they are known to be used, and may be
    sent again.

    Args:
      batches: the stream's.
      element_spec: of a batch.
      first: number of its first batch.
    """

    def __init__(self, batches: Iterator[Any], element_spec: Any, first: int):
        self.element_spec = element_spec
        self._unread, self._next = batches, first
        self._failure: Exception | None = None
        self._kept: dict[int, tuple[list[tf.Tensor], int]] = {}  # with their bytes

    @property
    def kept(self) -> int:
        """How many batches were read and may still be needed."""
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """What these take in memory, in bytes."""
        return sum(size for _, size in self._kept.values())

    def take(self, numbers: range, at_least: int = 1) -> tuple[int, list[tf.Tensor], tf.Tensor]:
        """Returns how many of the first of these batches are in one message, and the arguments of `single_batches`.

        As many as fit into it and are read in half a second, so that whoever waits for this process does not wait long.

        Args:
          numbers: of batches that are kept, or are the next to be read.
          at_least: so many are sent, if they have the same ranks, however large they are and however long they take.

        Raises:
          tf.errors.OutOfRangeError: there are no more.
        """
        group, began = Group(at_least), time.monotonic()
        for number in numbers:
            if len(group) >= at_least and time.monotonic() - began > _READ_SECONDS:
                break
            found = self._batch(number)
            if found is None or not group.takes(*found):
                break
            group.add(*found)
        if not group:
            raise tf.errors.OutOfRangeError(None, None, "the data has ended")
        return len(group), *group.tensors()

    def _batch(self, number: int) -> tuple[list[tf.Tensor], int] | None:
        """The tensors of a batch, and how many bytes they have; None where the stream has ended."""
        if number not in self._kept:
            assert number == self._next, f"batch {number} is not kept, and {self._next} is the next one"
            if self._failure is not None:
                raise self._failure  # not that the data has ended
            for batch in self._one_more():
                tensors = tf.nest.flatten(batch, expand_composites=True)
                self._kept[number] = tensors, sum(map(nbytes, tensors))
                self._next += 1
        return self._kept.get(number)

    def _one_more(self) -> Iterator[Any]:
        try:
            yield from itertools.islice(self._unread, 1)
        except Exception as failure:
            self._failure = failure
            raise

    def forget(self, used: range) -> None:
        """Drops batches that were used."""
        for number in used:
            self._kept.pop(number, None)

    def forget_all_but(self, is_unused: Callable[[int], bool]) -> None:
        """Drops all batches but those whose numbers are unused."""
        self._kept = {number: batch for number, batch in self._kept.items() if is_unused(number)}
