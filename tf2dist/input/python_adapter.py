"""Batches that Python yields as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf2dist.input.batch_slicing import ReplicaSlices
from tf2dist.input.dataset_adapter import cut_batches, slices_in_turn
from tf2dist.input.python_source import PythonSource
from tf2dist.input.timed_batch_reader import BatchReader
from tf2dist.input.without_autotune import without_autotune


class PythonAdapter:
    """A `keras.utils.PyDataset`, or what Python iterates over, of global batches. A `DataAdapter`.

    A thread of this process reads it, no further than the epoch that was begun: `PyDataset.on_epoch_end` comes before
    the batches of the next epoch are made, and an iterator is left where training has ended. Peers of a multi-worker
    job each read all of it, and keep their slices of each batch; it must be the same in all of them.

    Args:
      source: the data.
      steps: batches to use of each pass; None for all.
      shuffle: a new order for each pass, of a `PyDataset` that has an end.
      maps: functions applied to each batch.
    """

    element_per_replica = False
    begins_anywhere = False
    needs_this_process = True
    needs_one_reader = True

    def __init__(
        self,
        source: PythonSource,
        steps: int | None = None,
        *,
        shuffle: bool = False,
        maps: tuple[Callable[..., Any], ...] = (),
    ):
        self._source, self._steps, self._shuffle, self._maps = source, steps, shuffle, maps
        self._reader: BatchReader | None = None

    def divided(self, workers: int) -> PythonAdapter:
        """See `DataAdapter`. Workers are sent whole batches."""
        return self

    @property
    def steps(self) -> int | None:
        """See `DataAdapter`. What does not say how long it is, is read once to know."""
        if self._steps is not None:
            announced = self._source.announced_length
            return self._steps if announced is None else min(self._steps, announced)
        return self._source.length()

    @property
    def announced_steps(self) -> int | None:
        """See `DataAdapter`."""
        return self._source.announced_length if self._steps is None else self.steps

    def first(self, steps: int) -> PythonAdapter:
        """See `FiniteDataAdapter`."""
        return PythonAdapter(self._source, steps, shuffle=self._shuffle, maps=self._maps)

    def map(self, function: Callable[..., Any]) -> PythonAdapter:
        """See `DataAdapter`."""
        return PythonAdapter(self._source, self._steps, shuffle=self._shuffle, maps=(*self._maps, function))

    def cache_key(self):
        """See `FiniteDataAdapter`."""
        return "dataset", str(self.element_spec())

    def remote_arrays(self):
        """Nothing travels."""
        return ()

    def local_tensors(self):
        """Nothing: this process reads the data itself."""

    def shared_tensors(self, choose_seed: Callable[[], int]):
        """Nothing: so does each of them."""

    def element_spec(self):
        """See `DataAdapter`."""
        return self._dataset(lambda: iter(())).element_spec

    def _dataset(self, batches: Callable[[], Iterator[Any]]) -> tf.data.Dataset:
        """The batches, none of which is asked for before it is needed."""
        dataset = tf.data.Dataset.from_generator(batches, output_signature=self._source.spec())
        for function in self._maps:
            dataset = dataset.map(function)
        return without_autotune(dataset)

    def _read(self, start: int, *, shuffle: bool, passes: int | None) -> tf.data.Dataset:
        self.close()
        self._reader = self._source.open(start, shuffle=shuffle, passes=passes)
        return self._dataset(self._reader.wanted)

    def by_number(self) -> None:
        """None: the data comes in its own order."""

    def training_batches(self, tensors, slices: ReplicaSlices, start: int, worker=0, workers: int = 1, *, stop=None):
        """See `DataAdapter`. It begins anew at each call, but for an iterator."""
        dataset = self._read(start, shuffle=self._shuffle, passes=None)
        return cut_batches(dataset.shard(workers, worker) if workers > 1 else dataset, slices, parallel=False)

    def training_slices(self, tensors, total: int, start: int, worker, workers: int) -> tf.data.Dataset:
        """See `DataAdapter`. In this process, as all of it; under `ps` the coordinator reads whole batches instead."""
        return slices_in_turn(self._read(start, shuffle=self._shuffle, passes=None), total).shard(workers, worker)

    def single_pass(self, tensors, slices: ReplicaSlices, steps=None, shard=0, shards=1) -> tf.data.Dataset:
        """See `FiniteDataAdapter`."""
        steps = (self.steps or 0) if steps is None else steps
        dataset = self._read(0, shuffle=False, passes=1).take(steps).shard(shards, shard)
        self.allow(steps)
        return cut_batches(dataset, slices, parallel=False)

    def read(self, batches: tf.data.Dataset, first: int = 0) -> Iterator[Any]:
        """See `DataAdapter`. The thread that makes them looks at the time."""
        return iter(batches)

    def begin_epoch(self) -> None:
        """See `DataAdapter`."""
        self._source.begin_epoch()

    def end_epoch(self) -> None:
        """See `DataAdapter`."""
        self._source.end_epoch()

    def allow(self, batches: int) -> None:
        """See `DataAdapter`."""
        if self._reader is not None:
            self._reader.allow(batches)

    def raise_failure(self) -> None:
        """See `DataAdapter`."""
        if self._reader is not None and self._reader.failure is not None:
            raise self._reader.failure

    def close(self) -> None:
        """See `DataAdapter`."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
