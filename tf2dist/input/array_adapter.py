"""Arrays in memory as data: `tf2dist.Examples`."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.compat.autograph import converted
from tf2dist.errors import UsageError
from tf2dist.input.batch_slicing import ReplicaSlices, slice_bounds
from tf2dist.input.data_adapter import ReadByTensorFlow
from tf2dist.input.without_rewriting import without_rewriting

DEFAULT_BATCH_SIZE = 32  # examples, as in Keras
_ENDLESS = 1 << 62  # steps; Dataset.range wants an end


class Examples(ReadByTensorFlow):
    """Arrays in memory, read in shuffled global batches. A `DataAdapter`.

    The order of a pass is a keyed permutation of the indices (`tf.random.experimental.index_shuffle`), so the
    batch of any step follows from (seed, step) alone: it can be made on any worker, in any order, and again after
    a restart, and no shuffle buffer has to be filled first.

    Args:
      arrays: arrays with n rows each: a tuple `(x, y)` or `(x, y, sample_weight)`, or `x` alone. Several inputs or
        outputs are a list, tuple or dictionary of arrays (a tuple inside of the tuple: by itself it is `(x, y)`).
      batch_size: examples in a global batch; the last batch of a pass holds what is left.
      shuffle: a new order for each pass; if false, the order of the arrays.
      seed: int; determines the orders.
      transform: TensorFlow function from a batch of rows to what the model sees. It runs where the batch is used, so
        that arrays travel in the dtype they came in (pixels as u8, say).

    Raises:
      ValueError: no rows, different numbers of rows, or a batch size below 1.
    """

    element_per_replica = False
    begins_anywhere = True

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        transform: Callable[..., Any] | None = None,
    ) -> None:
        self.arrays: tuple[Any, ...] = tf.nest.map_structure(_as_array, as_x_y_weight(arrays))
        lengths = {len(a) for a in tf.nest.flatten(self.arrays)}
        if len(lengths) != 1:
            rows = zip(("x", "y", "sample_weight"), self.arrays, strict=False)
            found = ", ".join(f"{name} of {_rows_of(part)}" for name, part in rows)
            raise UsageError(f"arrays must have the same number of rows, found {found}")
        (self.rows,) = lengths
        if not self.rows:
            raise UsageError("the data is empty: the arrays have no rows")
        self.batch_size = batch_size = rows_in_a_batch(batch_size)
        seed = whole_number("seed", seed)
        self.shuffle = shuffle
        self.seed = seed
        self.transform = transform
        self._transform = None if transform is None else converted(transform)  # as `tf.data` does
        self.steps = math.ceil(self.rows / batch_size)
        self._tensors: Any = None

    @property
    def announced_steps(self) -> int:
        """See `DataAdapter`."""
        return self.steps

    def first(self, steps: int) -> Examples:
        """The same arrays, of which a single pass reads the first `steps` batches only."""
        few = self._copy(self.transform)
        few.steps = min(steps, self.steps)
        return few

    def map(self, function: Callable[..., Any]) -> Examples:
        """See `DataAdapter`."""
        inner = self._transform
        transform = function if inner is None else lambda *batch: function(*_as_tuple(inner(*batch)))
        return self._copy(tf.autograph.experimental.do_not_convert(transform))

    def _copy(self, transform: Callable[..., Any] | None) -> Examples:
        copy = Examples(self.arrays, self.batch_size, shuffle=self.shuffle, seed=self.seed, transform=transform)
        copy.steps = self.steps
        return copy

    def cache_key(self) -> Hashable:
        """See `FiniteDataAdapter`."""
        return "arrays", self.batch_size, self.rows, self.transform, str(self._array_specs())

    def remote_arrays(self) -> Any:
        """The arrays themselves, and what says in which order they are read."""
        return self.arrays, np.array([self.rows, self.batch_size, self.steps, self.seed], np.int64)

    def local_tensors(self) -> Any:
        """The arrays as tensors on this process's CPU."""
        if self._tensors is None:
            with tf.device("/cpu:0"):
                self._tensors = tf.nest.map_structure(tf.convert_to_tensor, self.remote_arrays())
        return self._tensors

    def shared_tensors(self, choose_seed: Callable[[], int]) -> Any:
        """See `DataAdapter`; the order has a seed."""
        return self.local_tensors()

    def _array_specs(self) -> Any:
        return tf.nest.map_structure(array_spec, self.arrays)

    def element_spec(self) -> Any:
        """See `DataAdapter`."""
        few = tf.nest.map_structure(lambda a: tf.constant(a[:1]), self.arrays)
        batch = _gather_rows(few, tf.constant([0]), self.transform)
        return tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), batch)

    def by_number(self) -> ArrayBatches | None:
        """See `DataAdapter`. None with a transform: its random operations would begin anew in each place of a graph."""
        return ArrayBatches(self.shuffle, None) if self.transform is None else None

    def training_batches(
        self,
        tensors: Any,
        slices: ReplicaSlices,
        start: int,
        worker: Any = 0,
        workers: int = 1,
        *,
        stop: int | None = None,
    ) -> tf.data.Dataset[Any]:
        """See `DataAdapter`."""
        return self._batches(tensors, _numbers(start + worker, workers), slices)

    def _batches(self, tensors: Any, steps: tf.data.Dataset[Any], slices: ReplicaSlices) -> tf.data.Dataset[Any]:
        """The slices of the batches of these steps."""
        batches = ArrayBatches(self.shuffle, self._transform)

        def make(step: tf.Tensor) -> Any:
            return slices.map(lambda rank: batches.slice(tensors, step, rank, slices.total))

        return _map_in_order(steps, make)

    def training_slices(self, tensors: Any, total: int, start: int, worker: Any, workers: int) -> tf.data.Dataset[Any]:
        """See `DataAdapter`."""
        batches = ArrayBatches(self.shuffle, self._transform)

        def make(number: tf.Tensor) -> Any:
            made = batches.slice(tensors, number // total, number % total, total)
            return made if total > 1 else (made, 1.0)

        return _map_in_order(_numbers(start * total + worker, workers), make)

    def single_pass(
        self, tensors: Any, slices: ReplicaSlices, steps: Any = None, shard: Any = 0, shards: Any = 1
    ) -> tf.data.Dataset[Any]:
        """See `FiniteDataAdapter`; in the order of the arrays."""
        unshuffled = Examples(self.arrays, self.batch_size, shuffle=False, transform=self.transform)
        numbers = tf.data.Dataset.range(self.steps if steps is None else steps)
        return unshuffled._batches(tensors, numbers.shard(shards, shard), slices)


@dataclass(frozen=True)
class ArrayBatches:
    """How a batch of arrays follows from its number. A `BatchMaker`.

    Attributes:
      shuffle, transform: as of `Examples`.
    """

    shuffle: bool
    transform: Callable[..., Any] | None

    def make(self, tensors: Any, number: tf.Tensor) -> Any:
        """See `BatchMaker`."""
        return self.slice(tensors, number, 0, 1)

    def slice(self, tensors: Any, number: tf.Tensor, rank: int | tf.Tensor, total: int) -> Any:
        """The `rank` i64[]-th of `total` slices of the batch of a step, with its weight if there are several.

        Args:
          tensors: the arrays, and i64[4]: their rows, the batch size, the batches of a pass, and the seed.
          number: i64[], of the step.
        """
        arrays, order = tensors
        rows, batch_size, steps, seed = tf.unstack(order, num=4)
        epoch, start = number // steps, number % steps * batch_size
        low, high, weight = slice_bounds(tf.minimum(batch_size, rows - start), rank, total)
        indices = tf.range(start + low, start + high)
        if self.shuffle:
            key = tf.cast(tf.stack([seed, epoch]), tf.int32)
            indices = tf.random.experimental.index_shuffle(indices, key, rows - 1)
        batch = _gather_rows(arrays, indices, self.transform)
        return batch if total == 1 else (batch, weight)


def _map_in_order(numbers: tf.data.Dataset[Any], make: Callable[[tf.Tensor], Any]) -> tf.data.Dataset[Any]:
    """`make` of each number, computed by several threads and kept in order."""
    make = tf.autograph.experimental.do_not_convert(make)
    made = numbers.map(make, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return without_rewriting(made).prefetch(tf.data.AUTOTUNE)


def _gather_rows(tensors: Any, indices: tf.Tensor, transform: Callable[..., Any] | None) -> Any:
    batch = tf.nest.map_structure(lambda t: tf.gather(t, indices), tensors)
    return transform(*batch) if transform else as_keras_passes(batch)


def _numbers(first: Any, stride: int) -> tf.data.Dataset[Any]:
    """Every `stride`-th number i64[] from `first` on, without end."""
    return tf.data.Dataset.range(tf.cast(first, tf.int64), _ENDLESS, stride)


def rows_in_a_batch(batch_size: Any) -> int:
    """Returns the batch size as an int.

    Raises:
      UsageError: it is no whole number, or less than 1.
    """
    batch_size = whole_number("batch_size", batch_size)
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, found {batch_size}")
    return batch_size


def whole_number(name: str, value: Any) -> int:
    """Returns an argument as an int. Raises UsageError for what is none, also for 2.0, as Keras does."""
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be a whole number, found {value!r}") from None


def as_x_y_weight(arrays: Any) -> tuple[Any, ...]:
    """The arrays as `(x,)`, `(x, y)` or `(x, y, sample_weight)`, with tuples for lists, which tf.data would stack."""
    batch = arrays if isinstance(arrays, tuple) else (arrays,)
    missing = [n for n, part in enumerate(batch) if n and part is None]
    batch = tuple(map(_with_tuples, batch[: missing[0]] if missing else batch))
    if len(batch) == 3 and tf.nest.is_nested(batch[1]) and not tf.nest.is_nested(batch[2]):
        return *batch[:2], tf.nest.map_structure(lambda _: batch[2], batch[1])  # of an example, for all outputs
    return batch


def _with_tuples(structure: Any) -> Any:
    if isinstance(structure, dict):
        return {name: _with_tuples(value) for name, value in structure.items()}
    return tuple(map(_with_tuples, structure)) if isinstance(structure, (list, tuple)) else structure


def as_keras_passes(batch: tuple[Any, ...]) -> Any:
    """A batch as Keras passes it to `train_step`: `x` by itself comes in a tuple only if it is one."""
    return batch[0] if len(batch) == 1 and not isinstance(batch[0], tuple) else batch


def _as_array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if not array.ndim:
        raise UsageError(f"arrays must have rows, found the single value {value!r}")
    return array


def _rows_of(part: Any) -> str:
    """How many rows the arrays of a part have; each number once."""
    return " and ".join(dict.fromkeys(str(len(array)) for array in tf.nest.flatten(part)))


def _as_tuple(batch: Any) -> tuple[Any, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


def array_spec(array: np.ndarray) -> tf.TensorSpec:
    """Shape and dtype of the tensor of an array."""
    return tf.TensorSpec(array.shape, tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype))
