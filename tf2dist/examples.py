"""Arrays in memory as a feed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf2dist.parts import Part, cut
from tf2dist.untuned import untuned

_ENDLESS = 1 << 62  # steps; Dataset.range wants an end


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
        self.arrays = tf.nest.map_structure(_as_array, arrays)
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

    def mapped(self, function: Callable) -> Examples:
        """The same examples, with `function` applied to each batch of them."""
        inner = self.transform
        transform = function if inner is None else lambda *batch: function(*_as_tuple(inner(*batch)))
        return Examples(self.arrays, self.batch_size, shuffle=self.shuffle, seed=self.seed, transform=transform)

    def signature(self):
        """Equal for feeds whose streams are the same functions of their tensors."""
        return "examples", self.batch_size, self.rows, self.transform, str(self._specs())

    def tensors(self):
        """The arrays as tensors on this process's CPU."""
        if self._tensors is None:
            with tf.device("/cpu:0"):
                self._tensors = tf.nest.map_structure(tf.convert_to_tensor, self.arrays)
        return self._tensors

    local = tensors

    def _specs(self):
        return tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, _dtype(a)), self.arrays)

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
        low, high, share = cut(size, rank, total)
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
        """The parts of the batches of these steps."""

        def make(step):
            return part.of(lambda rank: self._part(tensors, step, rank, part.total))

        return _made(numbers, make)

    def pieces(self, tensors, total: int, start: int, worker, workers: int) -> tf.data.Dataset:
        """Endless `(batch, share)` from step `start` on, `total` parts a batch, every `workers`-th part of them."""
        first = tf.cast(start * total + worker, tf.int64)
        numbers = tf.data.Dataset.range(_ENDLESS // (workers * total)).map(lambda number: first + number * workers)

        def make(piece):
            made = self._part(tensors, piece // total, piece % total, total)
            return made if total > 1 else (made, 1.0)

        return _made(numbers, make)

    def one_pass(self, tensors, part: Part, steps=None, shard=0, shards=1) -> tf.data.Dataset:
        """Every example once, in the order of the arrays; of several shards, the batches of one.

        Elements are as in `stream`.
        """
        unshuffled = Examples(self.arrays, self.batch_size, shuffle=False, transform=self.transform)
        return unshuffled._batches(tensors, tf.data.Dataset.range(self.steps).shard(shards, shard), part)


def _made(numbers: tf.data.Dataset, make: Callable) -> tf.data.Dataset:
    """What `make` makes of each number, by several threads and kept in order."""
    made = numbers.map(make, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return untuned(made).prefetch(tf.data.AUTOTUNE)


def _as_array(value) -> np.ndarray:
    array = np.asarray(value)
    if not array.ndim:
        raise ValueError(f"arrays must have rows, found the single value {value!r}")
    return array


def _as_tuple(batch) -> tuple:
    return batch if isinstance(batch, tuple) else (batch,)


def _dtype(array: np.ndarray) -> tf.DType:
    return tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)
