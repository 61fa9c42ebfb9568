"""Batches of a dataset put together, so that many travel to a worker in few tensors.

Their values follow each other, whatever their shapes, which are in a tensor beside them: i64[tensors of a batch,
batches, the highest rank], with -1 behind the dimensions of a lower one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

_MAX_BYTES = 4 << 20  # of a group that has more than one batch


class Group:
    """Batches with the same structure and ranks; `len` is how many.

    Args:
      at_least: so many are taken, however large they are.
    """

    def __init__(self, at_least: int = 1) -> None:
        self._batches: list[list[tf.Tensor]] = []  # the tensors of each
        self._nbytes, self._at_least = 0, at_least

    def __len__(self) -> int:
        return len(self._batches)

    def takes(self, batch: list[tf.Tensor], size: int) -> bool:
        """Returns whether a batch of `size` bytes can be added to the group."""
        if not self._batches:
            return True
        alike = all(a.shape.rank == b.shape.rank for a, b in zip(self._batches[0], batch, strict=True))
        return alike and (len(self) < self._at_least or self._nbytes + size <= _MAX_BYTES)

    def add(self, batch: list[tf.Tensor], size: int) -> None:
        """Adds a batch of `size` bytes to the group."""
        self._batches.append(batch)
        self._nbytes += size

    def tensors(self) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The values [?] of each tensor in all batches, and their shapes."""
        columns = list(zip(*self._batches, strict=True))
        highest = max(t.shape.rank for t in self._batches[0])
        shapes = [[[*t.shape, *[-1] * (highest - t.shape.rank)] for t in column] for column in columns]
        values = [tf.concat([tf.reshape(t, [-1]) for t in column], 0) for column in columns]
        return values, tf.constant(shapes, tf.int64, shape=[len(columns), len(self), highest])


class BatchGroups:
    """Groups of consecutive batches, no batch of which is read before it is asked for.

    Args:
      batches: nested structures of tensors, as of a `tf.data.Dataset`; ragged and sparse ones too.
    """

    def __init__(self, batches: Iterable[Any]):
        self._batches = iter(batches)
        self._next: list[list[tf.Tensor]] = []  # the tensors of a batch that was not like those before it

    def take(self, max_batches: int) -> tuple[int, list[tf.Tensor], tf.Tensor] | None:
        """The next group: how many batches it has, and what `single_batches` takes. None at the end."""
        group = Group()
        while len(group) < max_batches:
            if not self._next:
                self._next = [tf.nest.flatten(b, expand_composites=True) for b in itertools.islice(self._batches, 1)]
            size = sum(map(nbytes, self._next[0])) if self._next else 0
            if not self._next or not group.takes(self._next[0], size):
                break
            group.add(self._next.pop(), size)
        return (len(group), *group.tensors()) if group else None


def grouped(batches: Iterable[Any], max_batches: int) -> Iterator[tuple[int, list[tf.Tensor], tf.Tensor]]:
    """Yields all groups of up to `max_batches`, as `BatchGroups.take` returns them."""
    groups = BatchGroups(batches)
    while (group := groups.take(max_batches)) is not None:
        yield group


def nbytes(tensor: tf.Tensor) -> int:
    """What a tensor takes in memory, in bytes; of strings, their characters."""
    if tensor.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(tensor)))
    return tensor.dtype.size * tensor.shape.num_elements()


def group_signature(element_spec: Any) -> tuple[list[tf.TensorSpec], tf.TensorSpec]:
    """Shapes and dtypes of what `Group.tensors` returns, for batches with this spec."""
    specs = tf.nest.flatten(element_spec, expand_composites=True)
    return [tf.TensorSpec([None], s.dtype) for s in specs], tf.TensorSpec([len(specs), None, None], tf.int64)


def number_of_batches(shapes: tf.Tensor) -> tf.Tensor:
    """How many batches i64[] a group has, by the shapes of its tensors."""
    return tf.shape(shapes, tf.int64)[1]


def single_batches(together: list[tf.Tensor], shapes: tf.Tensor, element_spec: Any) -> tf.data.Dataset:
    """Splits a group, of what `Group.tensors` returns, into its batches again."""
    specs = tf.nest.flatten(element_spec, expand_composites=True)
    sizes = tf.reduce_prod(tf.where(shapes < 0, tf.ones_like(shapes), shapes), axis=-1)
    ends = tf.pad(tf.cumsum(sizes, axis=1), [[0, 0], [1, 0]])

    @tf.autograph.experimental.do_not_convert
    def cut(number: tf.Tensor) -> Any:
        tensors = []
        for place, (values, spec) in enumerate(zip(together, specs, strict=True)):
            shape, rank = shapes[place, number], spec.shape.rank
            shape = tf.boolean_mask(shape, shape >= 0) if rank is None else shape[:rank]
            values = values[ends[place, number] : ends[place, number + 1]]
            tensors.append(tf.ensure_shape(tf.reshape(values, shape), spec.shape))
        return tf.nest.pack_sequence_as(element_spec, tensors, expand_composites=True)

    return tf.data.Dataset.range(number_of_batches(shapes)).map(cut)
