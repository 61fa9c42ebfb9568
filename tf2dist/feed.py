"""What the user gives as data, as streams of batches: one interface over arrays, datasets and functions.

A *global batch* holds the examples of one update. Every feed cuts it into one part for each replica, and each part
carries its *share*, the fraction of the global batch that it holds, so that a last batch that does not divide
evenly still counts every example once and with equal weight.

A feed is split in two: `tensors` are what has to travel to a remote worker, once (`local` is what this process
needs), and the other methods are pure TensorFlow and rebuild the stream there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

_ENDLESS = 1 << 62  # steps; Dataset.range wants an end


@dataclass(frozen=True)
class Part:
    """Which replicas' parts of each global batch a stream yields, a tuple of them an element, in their order.

    `first` is the first replica's rank among the `total` replicas that take part in an update; `count` are local.
    """

    first: int = 0
    count: int = 1
    total: int = 1

    @property
    def whole(self) -> bool:
        """Is there one replica only, which takes the global batch as it is?"""
        return self.total == 1

    def of(self, cut: Callable[[int], Any]):
        """An element: what `cut` makes of each rank; of the only one, if there is no other."""
        return cut(0) if self.whole else tuple(cut(rank) for rank in range(self.first, self.first + self.count))


class Examples:
    """Arrays in memory, cut into shuffled global batches; the natural feed for data that fits.

    The order of a pass is a keyed permutation of the indices (`tf.random.experimental.index_shuffle`), so the
    batch of any step follows from (seed, step) alone: it can be made on any worker, in any order, and again after
    a restart, and no buffer is filled first.

    Args:
      arrays: nested structure of arrays with n rows each, as `(x, y)` or `(x, y, sample_weight)`.
      batch_size: examples in a global batch; the last one of a pass holds what is left.
      shuffle: a new order for each pass, else the order of the arrays.
      seed: of the orders; an int.
      transform: TensorFlow function from a batch of rows to what the model sees, run where the batch is used, so
        that arrays travel in the dtype they came in (pixels as u8, say).
    """

    def __init__(self, arrays, batch_size: int, *, shuffle=True, seed=0, transform: Callable | None = None):
        self.arrays = tf.nest.map_structure(np.asarray, arrays)
        lengths = {len(a) for a in tf.nest.flatten(self.arrays)}
        if len(lengths) != 1:
            raise ValueError(f"arrays must have the same number of rows, found {sorted(lengths)}")
        (self.rows,) = lengths
        if not self.rows:
            raise ValueError("the data is empty: the arrays have no rows")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, found {batch_size}")
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.transform = transform
        self.steps = math.ceil(self.rows / batch_size)
        self._tensors = None

    def tensors(self):
        """The arrays as tensors on this process's CPU."""
        if self._tensors is None:
            with tf.device("/cpu:0"):
                self._tensors = tf.nest.map_structure(tf.convert_to_tensor, self.arrays)
        return self._tensors

    local = tensors

    def spec(self):
        """Shapes and dtypes of a batch, as the model sees it."""
        few = tf.nest.map_structure(lambda a: tf.constant(a[:1]), self.arrays)
        batch = self._rows(few, tf.constant([0]))
        return tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), batch)

    def _rows(self, tensors, indices):
        batch = tf.nest.map_structure(lambda t: tf.gather(t, indices), tensors)
        return self.transform(*batch) if self.transform else batch

    def _part(self, tensors, step, rank, total: int):
        """The `rank`-th of `total` parts of the batch of `step`, and its share. `step` i64[], `rank` i64[]."""
        turn, within = step // self.steps, step % self.steps
        start = within * self.batch_size
        size = tf.minimum(tf.cast(self.batch_size, tf.int64), self.rows - start)
        low, high, share = _cut(size, rank, total)
        indices = tf.range(start + low, start + high)
        if self.shuffle:
            key = tf.cast(tf.stack([tf.cast(self.seed, tf.int64), turn]), tf.int32)
            indices = tf.random.experimental.index_shuffle(indices, key, tf.cast(self.rows - 1, tf.int64))
        rows = self._rows(tensors, indices)
        return rows if total == 1 else (rows, share)

    def stream(self, tensors, part: Part, start: int, worker=0, workers: int = 1) -> tf.data.Dataset:
        """Endless batches from step `start` on; of several asynchronous workers, each takes every `workers`-th.

        An element is `batch` where one replica takes all of it, else a tuple of `(batch, share f32[])`, one for
        each replica of `part`.
        """
        numbers = tf.data.Dataset.range(_ENDLESS // workers)
        first = tf.cast(start + worker, tf.int64)
        return self._batches(tensors, numbers.map(lambda number: first + number * workers), part)

    def _batches(self, tensors, numbers: tf.data.Dataset, part: Part) -> tf.data.Dataset:
        """The parts of the batches of these steps, made by several threads and kept in order."""

        def make(step):
            return part.of(lambda rank: self._part(tensors, step, rank, part.total))

        return _deterministic(numbers.map(make, num_parallel_calls=tf.data.AUTOTUNE)).prefetch(tf.data.AUTOTUNE)

    def one_pass(self, tensors, part: Part, shard=0, shards: int = 1) -> tf.data.Dataset:
        """Every example once, in the order of the arrays; of several shards, the batches of one.

        Elements are as in `stream`.
        """
        unshuffled = Examples(self.arrays, self.batch_size, shuffle=False, transform=self.transform)
        return unshuffled._batches(tensors, tf.data.Dataset.range(self.steps).shard(shards, shard), part)


class Batches:
    """A `tf.data.Dataset` of global batches.

    Its order is its own: give `shuffle` a seed where several processes read it together, since each peer of a
    multi-worker job reads the whole dataset and keeps its part of each batch. Asynchronous workers read it whole
    too and take every n-th batch, so their batches are disjoint when the order has a seed.
    """

    def __init__(self, dataset: tf.data.Dataset, steps: int | None = None):
        self.dataset = dataset
        self.steps = steps if steps is not None else _cardinality(dataset)

    def tensors(self):
        """The dataset's graph, serialized: string[]. It is rebuilt on the worker that reads it."""
        variant = tf.data.experimental.to_variant(self.dataset)
        try:
            return tf.raw_ops.DatasetToGraphV2(
                input_dataset=variant, external_state_policy=2, strip_device_assignment=True
            )
        except tf.errors.FailedPreconditionError as error:
            raise ValueError(
                "the dataset calls Python (from_generator, numpy_function or py_function), which cannot run on a "
                "remote worker; use TensorFlow operations, arrays or files"
            ) from error

    def spec(self):
        """Shapes and dtypes of a batch."""
        return self.dataset.element_spec

    def local(self):
        """Nothing: in this process the dataset is read as it is."""

    def _open(self, tensors):
        if tensors is None:
            return self.dataset
        return tf.data.experimental.from_variant(
            tf.raw_ops.DatasetFromGraph(graph_def=tensors), self.dataset.element_spec
        )

    def stream(self, tensors, part: Part, start: int, worker=0, workers: int = 1) -> tf.data.Dataset:
        """Endless batches, as `Examples.stream`; the batches before `start` are read and dropped."""
        dataset = self._open(tensors).repeat()
        dataset = dataset.skip(start) if start else dataset
        dataset = dataset.shard(workers, worker) if workers > 1 else dataset
        return _split(dataset, part).prefetch(tf.data.AUTOTUNE)

    def one_pass(self, tensors, part: Part, shard=0, shards: int = 1) -> tf.data.Dataset:
        """Every example once; of several shards, the batches of one."""
        dataset = self._open(tensors).take(-1 if self.steps is None else self.steps)
        dataset = dataset.shard(shards, shard) if not isinstance(shards, int) or shards > 1 else dataset
        return _split(dataset, part)


def _cut(size, rank, total: int):
    """Where the `rank`-th of `total` parts of `size` rows begins and ends, and its share: i64[], i64[], f32[].

    A part that would be empty (fewer rows than replicas) holds a copy of another row with share 0: a mean over no
    rows has no gradient, and every replica must take part in the collective.
    """
    size, rank = tf.cast(size, tf.int64), tf.cast(rank, tf.int64)
    low, high = size * rank // total, size * (rank + 1) // total
    share = tf.cast(high - low, tf.float32) / tf.cast(size, tf.float32)
    low = tf.minimum(low, size - 1)
    return low, tf.maximum(high, low + 1), share


def _split(dataset: tf.data.Dataset, part: Part) -> tf.data.Dataset:
    if part.whole:
        return dataset

    def cut(batch, rank):
        low, high, share = _cut(tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0], rank, part.total)
        return tf.nest.map_structure(lambda t: t[low:high], batch), share

    return dataset.map(
        lambda *batch: part.of(lambda rank: cut(_packed(batch), rank)), num_parallel_calls=tf.data.AUTOTUNE
    )


def one_by_one(dataset: tf.data.Dataset, part: Part) -> tf.data.Dataset:
    """The parts of a stream as elements of their own, as tf.distribute's iterators hand them to the replicas."""
    if part.whole:
        return dataset

    def flat(*parts):
        singles = [tf.data.Dataset.from_tensors(p) for p in parts]
        return functools.reduce(lambda a, b: a.concatenate(b), singles)

    return dataset.flat_map(flat)


def _packed(batch: tuple):
    """Undoes the unpacking that `Dataset.map` does to tuples, for elements that are no tuple."""
    return batch[0] if len(batch) == 1 else batch


def _cardinality(dataset: tf.data.Dataset) -> int | None:
    """Batches of one pass; None if endless. An unknown size is counted by reading the dataset once."""
    found = int(dataset.cardinality())
    if found == tf.data.UNKNOWN_CARDINALITY:
        found = int(dataset.reduce(np.int64(0), lambda count, *_: count + 1))
    return None if found == tf.data.INFINITE_CARDINALITY else found


def _deterministic(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def as_feed(data: Any, *, batch_size: int | None = None, shuffle=False, seed: int = 0, steps: int | None = None):
    """Makes a feed of anything `fit` and `evaluate` take.

    Raises:
      ValueError: for data of an unknown kind, and for a `batch_size` that is missing or contradicts the data's own.
    """
    if isinstance(data, (Examples, Batches)):
        return data
    if isinstance(data, tf.data.Dataset):
        if batch_size is not None:
            raise ValueError("batch_size is for arrays; a Dataset is batched already, by the global batch")
        return Batches(data, steps)
    if isinstance(data, (tuple, list)) and all(hasattr(a, "shape") for a in tf.nest.flatten(data)):
        return Examples(tuple(data), 32 if batch_size is None else batch_size, shuffle=shuffle, seed=seed)
    raise ValueError(
        f"data must be a tf.data.Dataset, a tuple of arrays (x, y) or tf2dist.Examples, found {type(data).__name__}"
    )
