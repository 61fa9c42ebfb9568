"""Data that Python yields, whole batches at a time: a `keras.utils.PyDataset`, an iterable, or an iterator.

What a torch `DataLoader` needs beside an iterable is that its tensors become arrays.
"""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tf2dist.errors import TrainingError, UsageError
from tf2dist.input import py_dataset_workers
from tf2dist.input.batch_format import as_spec, common_spec, in_words, spec_of, standardized
from tf2dist.input.input_progress import InputProgress, Unwatched
from tf2dist.input.sparse_ragged_rows import is_composite
from tf2dist.input.timed_batch_reader import BatchReader

_PEEKED = 2  # batches from which shapes are taken, as in Keras: a size that differs between them varies
_KEPT_BYTES = 1 << 30  # of an iterator whose length nobody says
_KEPT_BATCHES = 100_000
_ITERATORS = 16  # with nothing that tells when they are freed, of which it is known what was put back


def is_python_source(data: Any) -> bool:
    """Whether the data yields its batches in Python."""
    if isinstance(data, keras.utils.PyDataset):
        return True
    others = (str, bytes, tuple, list, set, frozenset, Mapping, np.ndarray, tf.Tensor, tf.data.Dataset)
    if isinstance(data, others) or hasattr(data, "__array__") or tf.is_tensor(data) or is_composite(data):
        return False
    return isinstance(data, Iterable)


class PythonSource:
    """Batches that Python yields, as nested arrays of one structure, whose shapes differ in their rows at most.

    Args:
      data: a `PyDataset`, an iterable of batches, or an iterator, which goes on where it was left.
      seed: of the order of the batches of a `PyDataset`; None for their own.
      progress: is told when data is read without a step, and when a batch does not come.
    """

    def __init__(self, data: Any, seed: int | None = None, progress: InputProgress | None = None):
        self._data, self._seed = data, seed
        self._progress = progress or Unwatched()
        self.name = f"the {type(data).__name__}"
        self._iterator = _Iterator.of(data) if isinstance(data, Iterator) else None
        self._kept: list[Any] | None = None  # all batches of an iterator
        self._spec: Any = None
        self._length: int | None = None

    # How long it is.

    @property
    def announced_length(self) -> int | None:
        """The batches of a pass, as the data says; None if it does not, or has no end."""
        if isinstance(self._data, keras.utils.PyDataset):
            return self._data.num_batches
        if self._iterator is not None:
            return None
        try:
            return len(self._data)
        except (TypeError, NotImplementedError):
            return None

    def length(self) -> int | None:
        """The batches of a pass; None for a `PyDataset` without an end. Others are read to know.

        Raises:
          ValueError: an iterator does not end soon.
        """
        if self._length is None:
            self._length = self.announced_length
        if self._length is None and self._iterator is not None:
            self._kept = self._keep()
            self._length = len(self._kept)
        if self._length is None and not isinstance(self._data, keras.utils.PyDataset):
            self._length = sum(1 for _ in self._read(lambda reader: iter(self._data)))
        return self._length

    def _keep(self) -> list[Any]:
        """All batches that an iterator still has."""
        kept, nbytes = [], 0
        for batch in self._read(lambda reader: self._iterator):
            kept.append(batch)
            nbytes += sum(getattr(leaf, "nbytes", 0) for leaf in tf.nest.flatten(batch, expand_composites=True))
            if nbytes > _KEPT_BYTES or len(kept) > _KEPT_BATCHES:
                raise UsageError(
                    f"{self.name} has not ended after {len(kept)} batches of {nbytes >> 20} MB together: say how many "
                    "to use with steps_per_epoch, steps or validation_steps"
                )
        return kept

    def _read(self, open_batches: Callable[[BatchReader], Any], most: int = 1 << 62) -> Iterator[Any]:
        """Yields up to `most` batches as they come, each within the time limit."""
        opened: list[BatchReader] = []
        reader = BatchReader(lambda: open_batches(opened[0]), self.name, 0, self._put_back, self._progress)
        opened.append(reader)
        try:
            reader.allow(most)
            for _ in range(most):
                taken = reader.take()
                if not taken:
                    return
                self._progress.moves()
                yield taken[0]
        finally:
            reader.close()

    def _put_back(self, batches: list[Any]) -> None:
        if self._iterator is not None and self._kept is None:
            self._iterator.put_back(batches)

    # What a batch is.

    def spec(self) -> Any:
        """Shapes and dtypes of a batch, whose rows are not counted.

        Raises:
          ValueError: there is no batch, or the first two are not alike.
        """
        if self._spec is None:
            few = [*self._read(lambda reader: iter(self._first_batches()), _PEEKED)]
            if self._iterator is not None and self._kept is None:
                self._iterator.put_back(few)
            if not few:
                raise UsageError(f"{self.name} has no batches")
            self._spec = common_spec([spec_of(standardized(batch, self.name)) for batch in few], self.name)
        return self._spec

    def _first_batches(self) -> Iterable[Any]:
        if isinstance(self._data, keras.utils.PyDataset):
            length = self._data.num_batches
            return (self._data[i] for i in range(_PEEKED if length is None else min(length, _PEEKED)))
        if self._kept is not None:
            return self._kept
        return self._data if self._iterator is None else self._iterator

    def _checked(self, batch: Any, number: int) -> Any:
        """Checks a batch against the spec, and converts it to the spec's dtypes.

        Raises:
          TrainingError: it is another.
        """
        name, expected = f"batch {number} of {self.name}", self.spec()
        found = standardized(batch, name)
        try:
            return as_spec(expected, found)
        except TypeError:
            raise TrainingError(
                f"{name}, counted from 0, is not as those before it: expected {in_words(expected)}, found "
                f"{in_words(spec_of(found))}; sizes other than that of the batch may vary if they differ between the "
                "first two batches"
            ) from None

    # Reading it.

    def open(self, start: int, *, shuffle: bool, passes: int | None = None) -> BatchReader:
        """A reader of batches, which are checked, from batch `start` of the first pass on.

        Args:
          shuffle: a new order for each pass, of a `PyDataset` that has an end.
          passes: how many; None for endlessly many.
        """
        opened: list[BatchReader] = []

        def batches() -> Iterator[Any]:
            number = start
            for batch in self._batches(start, shuffle, passes, opened[0]):
                yield self._checked(batch, number)
                number += 1

        reader = BatchReader(batches, self.name, start, self._put_back, self._progress)
        opened.append(reader)
        return reader

    def _batches(self, start: int, shuffle: bool, passes: int | None, reader: BatchReader) -> Iterator[Any]:
        if self._iterator is not None and self._kept is None:
            yield from _after(self._iterator, max(0, start - self._iterator.taken), reader)
            return
        if isinstance(self._data, keras.utils.PyDataset) and self._data.num_batches is None:
            yield from py_dataset_workers.read(self._data, itertools.count(start), lambda: reader.closed)
            return
        length = self.length() or 0
        first_pass, skipped = divmod(start, length) if length else (0, 0)
        numbers = itertools.count(first_pass) if passes is None else range(first_pass, first_pass + passes)
        for number in numbers:
            yield from self._pass(number, skipped, shuffle, reader)
            skipped = 0

    def _pass(self, number: int, skipped: int, shuffle: bool, reader: BatchReader) -> Iterator[Any]:
        if isinstance(self._data, keras.utils.PyDataset):
            if self._data.num_batches != self._length:
                raise TrainingError(
                    f"{self.name} says that it has {self._data.num_batches} batches, and has said {self._length} before"
                )
            order = range(self._length or 0)
            if shuffle:
                order = np.random.default_rng([self._seed or 0, number]).permutation(order).tolist()
            yield from py_dataset_workers.read(self._data, order[skipped:], lambda: reader.closed)
            return
        count = skipped
        whole = itertools.islice(iter(self._data if self._kept is None else self._kept), self._length)
        for batch in _after(whole, skipped, reader):
            count += 1
            yield batch
        if count < (self._length or 0):
            raise TrainingError(f"{self.name} has ended after {count} batches, and was to have {self._length}")

    def begin_epoch(self) -> None:
        """Calls `PyDataset.on_epoch_begin`."""
        if isinstance(self._data, keras.utils.PyDataset):
            self._data.on_epoch_begin()

    def end_epoch(self) -> None:
        """Calls `PyDataset.on_epoch_end`."""
        if isinstance(self._data, keras.utils.PyDataset):
            self._data.on_epoch_end()


def _after(batches: Iterator[Any], skipped: int, reader: BatchReader) -> Iterator[Any]:
    """The batches after the first `skipped`, which are read one by one, each with the time of a batch."""
    for _ in itertools.islice(batches, skipped):
        if reader.closed:
            return
        reader.has_skipped()
    yield from batches


class _Iterator:
    """An iterator, into which batches can be put back.

    Attributes:
      taken: the batches that were taken from it, and not put back.
    """

    _known: ClassVar[weakref.WeakKeyDictionary[Any, _Iterator]] = weakref.WeakKeyDictionary()
    _held: ClassVar[dict[int, _Iterator]] = {}  # those of Python itself, as `zip`: they cannot be referred to weakly

    def __init__(self, iterator: Iterator[Any]):
        try:
            self._iterator = weakref.ref(iterator)
        except TypeError:
            self._iterator = lambda: iterator
        self._put_back: collections.deque[Any] = collections.deque()
        self.taken = 0

    @classmethod
    def of(cls, iterator: Iterator[Any]) -> _Iterator:
        """Returns one wrapper per iterator, so that a later call goes on where an earlier one stopped."""
        try:
            return cls._known.setdefault(iterator, cls(iterator))
        except TypeError:
            found = cls._held.pop(id(iterator), None) or cls(iterator)  # it holds the iterator, whose id stays its own
            cls._held[id(iterator)] = found
            for oldest in [*cls._held][:-_ITERATORS]:
                cls._held.pop(oldest)
            return found

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        if self._put_back:
            batch = self._put_back.popleft()
        else:
            iterator = self._iterator()
            assert iterator is not None  # who reads it holds it
            batch = next(iterator)
        self.taken += 1
        return batch

    def put_back(self, batches: list[Any]) -> None:
        self._put_back.extendleft(reversed(batches))
        self.taken -= len(batches)
