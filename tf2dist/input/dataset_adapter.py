"""A `tf.data.Dataset` of global batches as data."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.compat.executor_per_thread import in_own_executor
from tf2dist.compat.strategy_internals import LOST_TASK_ERRORS
from tf2dist.errors import TrainingError, UsageError
from tf2dist.input import auto_shard
from tf2dist.input.batch_slicing import ReplicaSlices, slice_bounds
from tf2dist.input.data_adapter import ReadByTensorFlow
from tf2dist.input.dataset_graph import DatasetGraph, may_be_served
from tf2dist.input.input_progress import InputProgress, Unwatched
from tf2dist.input.timed_batch_reader import BatchReader
from tf2dist.input.without_autotune import without_autotune

_BATCH_SECONDS = 3600.0  # that a batch may take where this process reads them: a shuffle fills its buffer first
_SAID_SECONDS = 30.0  # after so many, and then again, it is said how many were counted
_log = logging.getLogger("tf2dist")


class DatasetAdapter(ReadByTensorFlow):
    """A `tf.data.Dataset` of global batches. A `DataAdapter`.

    The dataset decides its order. Where several processes read it together, each reads all of it: a peer of a
    multi-worker job keeps its slice of each batch, a synchronous worker every n-th slice. So that all of them see the
    same order, what is random in the dataset and has no seed gets one that they share, anew in each call. For
    asynchronous workers the coordinator reads it, unless its options name an auto-shard policy: then each reads its
    shard. The elements of a tf.data service are never all in one process but where it alone reads them: a coordinator
    does.

    Args:
      steps: batches to use of each pass; None for all.
      progress: is told that batches are counted.
    """

    element_per_replica = False
    begins_anywhere = False

    def __init__(self, dataset: tf.data.Dataset, steps: int | None = None, progress: InputProgress | None = None):
        self.dataset = without_autotune(dataset)
        self._policy = auto_shard.chosen_policy(dataset)
        self._has_one_order = True  # for all workers that read it
        self._steps, self._progress = steps, progress or Unwatched()
        self._counted = False
        self._steps_of_a_pass: int | None = None

    @property
    def steps(self) -> int | None:
        """See `DataAdapter`. A dataset of unknown length is read once to count its batches."""
        if not self._counted:
            self._steps_of_a_pass, self._counted = self._count_steps(), True
        return self._steps_of_a_pass

    @property
    def announced_steps(self) -> int | None:
        """See `DataAdapter`."""
        return self.steps if self._steps is not None or int(self.dataset.cardinality()) >= 0 else None

    def _count_steps(self) -> int | None:
        found = int(self.dataset.cardinality())
        if self._steps is not None:
            return min(self._steps, found) if found >= 0 else self._steps
        if found == tf.data.UNKNOWN_CARDINALITY:
            found = self._count_of_service()
        if found == tf.data.UNKNOWN_CARDINALITY:
            if self._served_graph and self._served_graph.may_lack_elements:
                raise UsageError(
                    "nobody knows how many elements data workers make of this Dataset, and a pass that counts them may "
                    "lack some; say it by tf.data.experimental.assert_cardinality before DataService.distribute, or "
                    "give steps_per_epoch (steps, validation_steps)"
                )
            found = self._count_by_reading()
        return None if found == tf.data.INFINITE_CARDINALITY else found

    def _count_of_service(self) -> int:
        """The cardinality where a `tf2dist.DataService` has noted it, which TensorFlow does not know."""
        graph = self._served_graph
        return int(self._from_graph(graph.counted()).cardinality()) if graph else tf.data.UNKNOWN_CARDINALITY

    @functools.cached_property
    def _served_graph(self) -> DatasetGraph | None:
        """The graph of a dataset of which a `tf2dist.DataService` makes a part."""
        if not may_be_served():
            return None
        try:
            graph = DatasetGraph(self.dataset)
        except LOST_TASK_ERRORS:
            raise
        except (tf.errors.OpError, ValueError):  # it cannot be copied, as with large arrays beside
            return None
        return graph if graph.served_by else None

    def check_served(self) -> None:
        """Raises UsageError where a `tf2dist.DataService` makes elements in any order, and their order matters."""
        graph = self._served_graph
        if graph and (graph.served_by > 1 or graph.may_lack_elements) and graph.served_by_place:
            raise UsageError(
                f"the Dataset has an operation {graph.served_by_place} on elements of data workers, which come in any "
                "order, or are missing where a worker was lost, so that each pass would be another one; do it before, "
                "in a Dataset that is not distributed"
            )

    def whole(self, *, in_order: bool) -> DatasetAdapter:
        """The same data, of which no element may be missing, and which must come in its order if that is said.

        Raises:
          UsageError: several data workers make its elements, in any order.
        """
        graph = self._served_graph
        if graph is None:
            return self
        if in_order and graph.served_by > 1:
            raise UsageError(
                f"predictions come in the order of the data, and {graph.served_by} data workers make its elements in "
                "any order; give predict the Dataset without tf2dist.DataService, or use one data worker"
            )
        return DatasetAdapter(self._from_graph(graph.counted()), self._steps, self._progress)

    def _count_by_reading(self) -> int:
        """Reads a copy, so that the first epoch has the dataset's first random order, as in Keras."""
        try:
            return self._count(self._from_graph(DatasetGraph(self.dataset).apart()))
        except TrainingError:  # it gives no more
            raise
        except (tf.errors.OpError, ValueError):  # the dataset cannot be copied, or read at all
            return self._count(self.dataset)

    def _count(self, dataset: tf.data.Dataset) -> int:
        count, said = 0, time.monotonic()

        reader = self._reader(iter(dataset))
        with contextlib.closing(reader):
            reader.allow(1 << 62)
            while reader.take():
                count += 1
                self._progress.moves()
                if time.monotonic() - said >= _SAID_SECONDS:
                    said = time.monotonic()
                    _log.info("tf2dist: the Dataset is read to count its batches: %d until now", count)
        return count

    def _reader(self, batches: Iterator[Any], first: int = 0) -> BatchReader:
        def in_a_thread() -> Iterator[Any]:
            with in_own_executor():
                yield from batches

        return BatchReader(
            in_a_thread, "the Dataset", first, progress=self._progress, seconds=_BATCH_SECONDS, reads_again=first > 0
        )

    def read(self, batches: tf.data.Dataset, first: int = 0) -> Iterator[Any]:
        """See `DataAdapter`."""
        yield from self._reader(iter(batches), first).all()

    def first(self, steps: int) -> DatasetAdapter:
        """See `FiniteDataAdapter`."""
        return DatasetAdapter(self.dataset, steps, self._progress)

    def map(self, function: Callable) -> DatasetAdapter:
        """See `DataAdapter`."""
        mapped = self.dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)
        return DatasetAdapter(mapped, self._steps, self._progress)

    def cache_key(self):
        """See `FiniteDataAdapter`."""
        return "dataset", str(self.dataset.element_spec)

    def remote_arrays(self):
        """The dataset's serialized graph, a single string; the worker that reads it rebuilds the dataset.

        Variables that the dataset reads are copies on each worker, with the values that they have now.
        """
        graph = DatasetGraph(self.dataset)
        serialized = graph.seeded(secrets.randbits(31)) if self._has_one_order else graph.apart()
        return np.array(serialized.numpy(), object)

    @property
    def needs_one_reader(self) -> bool:
        """See `DataAdapter`."""
        return self._policy is None or self.needs_this_process

    def divided(self, workers: int) -> DatasetAdapter:
        """See `DataAdapter`. Under the policies `FILE` and `OFF` each worker has an order of its own."""
        policies = auto_shard.AutoShardPolicy
        if self._policy in (None, policies.DATA) or self.needs_this_process or workers == 1:
            return self
        if self._policy is policies.FILE:
            self._check_files(workers)
        own = copy.copy(self)
        own._has_one_order = False
        return own

    def _check_files(self, workers: int) -> None:
        graph = DatasetGraph(self.dataset)
        if graph.caches_in_files:
            raise UsageError(
                "auto_shard_policy=FILE: the Dataset has a cache(filename), in which a worker would find what another "
                "process has kept; use cache(), without a name, which each worker has for itself"
            )
        auto_shard.check_files(self._from_graph(graph.apart()), workers)

    @property
    def needs_this_process(self) -> bool:
        """See `DataAdapter`. So it is if the dataset calls Python, reads a service, or cannot be serialized."""
        return self._stays_here

    @functools.cached_property
    def _stays_here(self) -> bool:
        try:
            graph = DatasetGraph(self.dataset)
            return graph.calls_python or graph.reads_service
        except LOST_TASK_ERRORS:
            raise  # a variable that the dataset reads was lost with its server
        except tf.errors.OpError as error:
            _log.info("the coordinator reads the dataset for its workers, which cannot: %s", error.message)
            return True

    def shared_tensors(self, choose_seed: Callable[[], int]):
        """See `DataAdapter`. Nothing where all that is random has a seed: then each process reads the dataset.

        Raises:
          UsageError: the dataset reads a tf.data service.
        """
        if self._graph_that_may_differ is None:
            return self.local_tensors()
        return self._graph_that_may_differ.seeded(choose_seed())

    @functools.cached_property
    def _graph_that_may_differ(self) -> DatasetGraph | None:
        try:
            graph = DatasetGraph(self.dataset)
        except (tf.errors.OpError, ValueError):  # of more than 2 GB, say
            return None
        if graph.reads_service:
            raise UsageError(
                "a tf.data service gives each peer other elements of this Dataset, and peers cut the same global "
                "batch; give a function of tf.distribute.InputContext that returns it, in batches for one replica"
            )
        as_they_come = self.dataset.options().deterministic is False  # which operations without a word follow
        return graph if graph.may_differ or as_they_come else None

    def element_spec(self):
        """See `DataAdapter`."""
        return self.dataset.element_spec

    def local_tensors(self):
        """Nothing: this process reads the dataset itself."""

    def _open(self, tensors):
        if tensors is None:
            return self.dataset
        options = tf.data.Options()
        options.deterministic = True  # or those who read it together would see different orders
        return self._from_graph(tensors).with_options(options)

    def _from_graph(self, graph: tf.Tensor) -> tf.data.Dataset:
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        return tf.data.experimental.from_variant(variant, self.dataset.element_spec)

    def by_number(self) -> None:
        """None: the dataset decides its order."""

    def training_batches(
        self, tensors, slices: ReplicaSlices, start: int, worker=0, workers: int = 1, *, stop: int | None = None
    ) -> tf.data.Dataset:
        """See `DataAdapter`. The batches before `start` are read and dropped."""
        dataset = self._endless_shard(tensors, start, worker, workers) if workers > 1 else self._endless(tensors, start)
        if stop is not None:  # a pass that begins takes the next of the dataset's orders, which is that of a later call
            dataset = dataset.take(max(0, stop - start))
        return cut_batches(dataset, slices).prefetch(tf.data.AUTOTUNE)

    def _endless(self, tensors, start: int) -> tf.data.Dataset:
        dataset = self._open(tensors)
        dataset = (dataset if self._steps is None else dataset.take(self._steps)).repeat()
        return dataset.skip(start) if start else dataset

    def _endless_shard(self, tensors, start: int, worker, workers: int) -> tf.data.Dataset:
        if self._has_one_order:
            return self._endless(tensors, start).shard(workers, worker)  # of one stream, and not of each pass
        dataset = self._open(tensors)
        if self._policy is auto_shard.AutoShardPolicy.FILE:
            dataset = auto_shard.shard_files(dataset, workers, worker)
        return dataset.repeat().skip(start // workers)  # all of it where the policy is OFF

    def training_slices(self, tensors, total: int, start: int, worker, workers: int) -> tf.data.Dataset:
        """See `DataAdapter`."""
        slices = slices_in_turn(self._endless(tensors, start), total)
        return slices.shard(workers, worker).prefetch(tf.data.AUTOTUNE)

    def single_pass(self, tensors, slices: ReplicaSlices, steps=None, shard=0, shards=1) -> tf.data.Dataset:
        """See `FiniteDataAdapter`."""
        if steps is None:
            steps = self.steps or 0
        dataset = self._open(tensors).take(steps)
        return cut_batches(dataset.shard(shards, shard), slices)


def slices_in_turn(batches: tf.data.Dataset, total: int) -> tf.data.Dataset:
    """Elements are the `total` slices of each batch, one after the other, each with its weight f32[]."""

    def cuts(batch):
        return tf.data.Dataset.range(total).map(lambda rank: slice_of(batch, rank, total))

    return batches.flat_map(of_element(batches, cuts))


def slice_of(batch, rank, total: int):
    """The `rank`-th of `total` slices of a batch, and its weight f32[].

    Parts of a batch may have different numbers of rows, as labelled and unlabelled examples. All are cut in the same
    proportion, so that means over their rows have the same weight: 9 and 18 rows into 4 and 8, and 5 and 10. Rows of
    numbers that have no common divisor stay together.
    """
    parts = tf.nest.flatten(batch)
    sizes = [_number_of_rows(part) for part in parts]
    unit = _common_divisor(sizes)
    low, high, weight = slice_bounds(unit, rank, total)
    times = [size // tf.maximum(unit, 1) for size in sizes]
    slices = [_rows(part, low * n, high * n) for part, n in zip(parts, times, strict=True)]
    return tf.nest.pack_sequence_as(batch, slices), weight


def _common_divisor(numbers: Sequence[tf.Tensor]) -> tf.Tensor:
    """The greatest one of numbers i64[]."""

    def of_two(a, b):
        return tf.while_loop(lambda a, b: b > 0, lambda a, b: (b, a % b), (a, b))[0]

    are_equal = tf.reduce_all(tf.equal(tf.stack(numbers), numbers[0]))
    return tf.cond(are_equal, lambda: numbers[0], lambda: functools.reduce(of_two, numbers))


def _number_of_rows(tensor) -> tf.Tensor:
    if isinstance(tensor, tf.SparseTensor):
        return tensor.dense_shape[0]
    return tensor.nrows(tf.int64) if isinstance(tensor, tf.RaggedTensor) else tf.shape(tensor, tf.int64)[0]


def _rows(tensor, low, high):
    if not isinstance(tensor, tf.SparseTensor):
        return tensor[low:high]
    shape = tensor.dense_shape
    start = tf.concat([low[tf.newaxis], tf.zeros_like(shape[1:])], 0)
    rows = tf.sparse.slice(tensor, start, tf.concat([(high - low)[tf.newaxis], shape[1:]], 0))
    rank = len(tensor.shape)
    return tf.SparseTensor(rows.indices, rows.values, tf.ensure_shape(rows.dense_shape, [rank]))


def cut_batches(dataset: tf.data.Dataset, slices: ReplicaSlices, *, parallel: bool = True) -> tf.data.Dataset:
    """Elements of a stream for these slices, from global batches; `parallel`: reading ahead of what is asked for."""
    if slices.single:
        return dataset
    return dataset.map(
        of_element(dataset, lambda batch: slices.map(lambda rank: slice_of(batch, rank, slices.total))),
        num_parallel_calls=tf.data.AUTOTUNE if parallel else None,
    )


def of_element(dataset: tf.data.Dataset, function: Callable) -> Callable:
    """`function` of an element of the dataset, for `Dataset.map`, which makes several arguments of a tuple."""
    unpacked = type(dataset.element_spec) is tuple
    return tf.autograph.experimental.do_not_convert((lambda *batch: function(batch)) if unpacked else function)
