"""Global batches cut into slices: one for each replica, with the fraction of the batch that it holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class ReplicaSlices:
    """Which slices of each global batch a process reads.

    Attributes:
      first: rank of its first replica.
      count: its replicas.
      total: replicas of all processes that take part in an update.
    """

    first: int = 0
    count: int = 1
    total: int = 1

    @property
    def single(self) -> bool:
        """Is there one replica only, which takes the global batch as it is?"""
        return self.total == 1

    def map(self, make_slice: Callable[[int], Any]):
        """An element of a stream: what `make_slice` returns for each rank, or for the only one."""
        return make_slice(0) if self.single else tuple(map(make_slice, range(self.first, self.first + self.count)))


def slice_bounds(size, rank, total: int):
    """Begin i64[], end i64[] and weight f32[] of the `rank`-th of `total` slices of `size` rows.

    The weight is the fraction of the rows. A slice that would be empty (fewer rows than replicas) holds a copy of
    another row with weight 0: a mean over no rows has no gradient, and every replica must take part in the collective.
    """
    size, rank = tf.cast(size, tf.int64), tf.cast(rank, tf.int64)
    low, high = size * rank // total, size * (rank + 1) // total
    weight = tf.math.divide_no_nan(tf.cast(high - low, tf.float32), tf.cast(size, tf.float32))  # 0 of no rows
    low = tf.minimum(low, size - 1)
    return low, tf.maximum(high, low + 1), weight


def one_slice_an_element(dataset: tf.data.Dataset, slices: ReplicaSlices) -> tf.data.Dataset:
    """A stream of tuples of slices as a stream of slices, which tf.distribute's iterators hand to the replicas."""
    if slices.single:
        return dataset

    def split(*slices):
        singles = [tf.data.Dataset.from_tensors(s) for s in slices]
        return functools.reduce(lambda a, b: a.concatenate(b), singles)

    return dataset.flat_map(split)
