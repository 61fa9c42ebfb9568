"""Batches of a dataset put together, so that many travel to a worker in few tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

_MAX_BYTES = 4 << 20  # of a group that has more than one batch


class Group:
    """Batches with the same structure, whose rows have the same shapes; `len` is how many."""

    def __init__(self) -> None:
        self._batches: list[list[tf.Tensor]] = []  # the tensors of each
        self._nbytes = 0  # of all of them

    def __len__(self) -> int:
        return len(self._batches)

    def takes(self, batch: list[tf.Tensor], size: int) -> bool:
        """Returns whether a batch of `size` bytes can be added to the group."""
        if not self._batches:
            return True
        alike = all(a.shape[1:] == b.shape[1:] for a, b in zip(self._batches[0], batch, strict=True))
        return alike and self._nbytes + size <= _MAX_BYTES

    def add(self, batch: list[tf.Tensor], size: int) -> None:
        """Adds a batch of `size` bytes to the group."""
        self._batches.append(batch)
        self._nbytes += size

    def tensors(self) -> tuple[list[tf.Tensor], tf.Tensor]:
        """All rows of each tensor, and where those of each batch begin and end: i64[tensors, batches + 1]."""
        columns = [
            [t if t.shape.rank else t[tf.newaxis] for t in column] for column in zip(*self._batches, strict=True)
        ]
        ends = [list(itertools.accumulate(map(len, column), initial=0)) for column in columns]
        return [tf.concat(column, 0) for column in columns], tf.constant(ends, tf.int64)


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
    """Shapes and dtypes of the tensors of a group of batches with this spec."""
    specs = tf.nest.flatten(element_spec, expand_composites=True)
    return [_of_several(s) for s in specs], tf.TensorSpec([len(specs), None], tf.int64)


def _of_several(spec: tf.TensorSpec) -> tf.TensorSpec:
    rank = spec.shape.rank
    return tf.TensorSpec(spec.shape if rank is None else [None, *spec.shape[1:]], spec.dtype)


def single_batches(together: list[tf.Tensor], ends: tf.Tensor, element_spec: Any) -> tf.data.Dataset:
    """Splits a group into its batches again."""
    specs = tf.nest.flatten(element_spec, expand_composites=True)

    @tf.autograph.experimental.do_not_convert
    def cut(number: tf.Tensor) -> Any:
        tensors = []
        for place, (tensor, spec) in enumerate(zip(together, specs, strict=True)):
            rows = tensor[ends[place, number] : ends[place, number + 1]]
            tensors.append(tf.ensure_shape(rows if spec.shape.rank != 0 else rows[0], spec.shape))
        return tf.nest.pack_sequence_as(element_spec, tensors, expand_composites=True)

    return tf.data.Dataset.range(tf.shape(ends, tf.int64)[1] - 1).map(cut)
