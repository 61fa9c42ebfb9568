"""The interface between user data and those who run steps on it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol, Self

import tensorflow as tf

from tf2dist.input.batch_slicing import ReplicaSlices


class BatchMaker(Hashable, Protocol):
    """Makes global batches from their numbers. Equal ones are the same function; none holds the data."""

    def make(self, tensors: Any, number: tf.Tensor) -> Any:
        """The global batch of step `number` i64[], from what `remote_arrays` returned as tensors. In a graph."""
        ...


class DataAdapter(Protocol):
    """User data as a stream of global batches; a *global batch* holds the examples of one update.

    Each global batch is cut into one slice for each replica. A slice comes with its *weight*, the fraction of the
    global batch that it holds, so that a last batch that does not divide evenly still counts every example once and
    equally.

    An adapter has two parts. `remote_arrays` is what has to travel to a remote worker, once (`local_tensors` is what
    this process needs instead). The other methods are pure TensorFlow: they rebuild the stream from those tensors,
    in whichever process it is read.
    """

    @property
    def steps(self) -> int | None:
        """Global batches of one pass over the data; None if it is endless, or only the user knows."""
        ...

    @property
    def announced_steps(self) -> int | None:
        """As `steps`, without counting the batches of data that does not say how many it has."""
        ...

    @property
    def element_per_replica(self) -> bool:
        """Is an element of the stream one replica's batch, instead of a tuple of all slices of a global batch?"""
        ...

    @property
    def needs_this_process(self) -> bool:
        """Can no other process read it? Then the coordinator reads it for its workers, whole batches."""
        ...

    @property
    def needs_one_reader(self) -> bool:
        """Would each of several workers have to read all of it, to use a part? Then the coordinator reads it for them.

        So each batch is used once, whichever worker is free. Synchronous workers that can read all of it do, since
        each update is made of all their slices, in order.
        """
        ...

    def divided(self, workers: int) -> Self:
        """The same data as so many asynchronous workers read it, each by itself, where the user has asked for that.

        Raises:
          UsageError: a worker would have nothing to read.
        """
        ...

    def element_spec(self) -> Any:
        """Shapes and dtypes of a batch, as the model sees it."""
        ...

    def remote_arrays(self) -> Any:
        """What has to travel to a remote worker: a nested structure of NumPy arrays, those of a user not copied."""
        ...

    def local_tensors(self) -> Any:
        """What this process needs to rebuild the stream."""
        ...

    def shared_tensors(self, choose_seed: Callable[[], int]) -> Any:
        """As `local_tensors`, in one of several processes that all read this stream, and must see the same.

        Args:
          choose_seed: returns the same number in all of them; called in all of them or in none.
        """
        ...

    def training_batches(
        self,
        tensors: Any,
        slices: ReplicaSlices,
        start: int,
        worker: Any = 0,
        workers: int = 1,
        *,
        stop: int | None = None,
    ) -> tf.data.Dataset:
        """Endless global batches from step `start` on.

        Args:
          tensors: as `local_tensors` returned them, or tensors of what `remote_arrays` returned.
          slices: which replicas' slices an element holds.
          worker, workers: of several asynchronous workers, this one takes every `workers`-th batch; i64[] or int.
          stop: the step of which no batch is wanted any more; a user's Dataset, which draws its orders one after the
            other, is read up to there and no further.

        Returns:
          Elements are `batch` where one replica takes all of it; else a tuple of `(batch, weight f32[])`, one for each
          replica of `slices`, or a single such pair if `element_per_replica`.
        """
        ...

    def training_slices(self, tensors: Any, total: int, start: int, worker: Any, workers: int) -> tf.data.Dataset:
        """Endless `(batch, weight f32[])` from step `start` on, `total` slices a global batch.

        One of `workers` synchronous workers takes every `workers`-th slice.
        """
        ...

    def read(self, batches: tf.data.Dataset, first: int = 0) -> Iterator[Any]:
        """Yields batches of what one of these methods has returned for this process, each of which comes in time.

        Args:
          batches: the dataset that was returned; a few of them are read before they are asked for.
          first: number of the first of them, in messages.

        Raises:
          TrainingError: a batch has not come.
        """
        ...

    def by_number(self) -> BatchMaker | None:
        """Makes any batch of `training_batches` from its number; None where a pipeline has to be read in order."""
        ...

    def map(self, function: Callable) -> Self:
        """The same data, with `function` applied to each batch."""
        ...

    def begin_epoch(self) -> None:
        """Called before an epoch, an evaluation or a prediction reads its batches."""
        ...

    def end_epoch(self) -> None:
        """Called when it has read them; and once before a training or an evaluation, as Keras does."""
        ...

    def allow(self, batches: int) -> None:
        """Lets so many more batches be read than were until now, of data that Python reads."""
        ...

    def raise_failure(self) -> None:
        """Raises what was wrong with the data, where TensorFlow has raised that reading them has failed."""
        ...

    def close(self) -> None:
        """Ends what reads the stream or the pass that was opened last."""
        ...


class ReadByTensorFlow:
    """The parts of a `DataAdapter` that do nothing for data of which TensorFlow can read any part in any process."""

    @property
    def needs_this_process(self) -> bool:
        """See `DataAdapter`."""
        return False

    @property
    def needs_one_reader(self) -> bool:
        """See `DataAdapter`."""
        return False

    def divided(self, workers: int) -> Self:
        """See `DataAdapter`."""
        return self

    def read(self, batches: tf.data.Dataset, first: int = 0) -> Iterator[Any]:
        """See `DataAdapter`."""
        return iter(batches)

    def begin_epoch(self) -> None:
        """See `DataAdapter`."""

    def end_epoch(self) -> None:
        """See `DataAdapter`."""

    def allow(self, batches: int) -> None:
        """See `DataAdapter`."""

    def raise_failure(self) -> None:
        """See `DataAdapter`."""

    def close(self) -> None:
        """See `DataAdapter`."""


class FiniteDataAdapter(DataAdapter, Protocol):
    """Data that can be read once from beginning to end, for `evaluate` and `predict`."""

    begins_anywhere: bool
    """May a pass over a part of it begin anywhere, without reading what is before?"""

    def cache_key(self) -> Hashable:
        """Equal for adapters whose streams are the same functions of their tensors, so that traces can be shared."""
        ...

    def first(self, steps: int) -> Self:
        """The same data, of which a pass ends after `steps` batches."""
        ...

    def single_pass(
        self, tensors: Any, slices: ReplicaSlices, steps: Any = None, shard: Any = 0, shards: Any = 1
    ) -> tf.data.Dataset:
        """Every example of the first `steps` global batches once, in order; all batches if `steps` is None.

        Args:
          shard, shards: of several shards, the batches of one; i64[] or int.

        Returns:
          Elements as in `training_batches`.
        """
        ...
