"""Global batches in parts: one for each replica, with the share of the batch that it holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


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


def cut(size, rank, total: int):
    """Where the `rank`-th of `total` parts of `size` rows begins and ends, and its share: i64[], i64[], f32[].

    A part that would be empty (fewer rows than replicas) holds a copy of another row with share 0: a mean over no
    rows has no gradient, and every replica must take part in the collective.
    """
    size, rank = tf.cast(size, tf.int64), tf.cast(rank, tf.int64)
    low, high = size * rank // total, size * (rank + 1) // total
    share = tf.cast(high - low, tf.float32) / tf.cast(size, tf.float32)
    low = tf.minimum(low, size - 1)
    return low, tf.maximum(high, low + 1), share


def one_by_one(dataset: tf.data.Dataset, part: Part) -> tf.data.Dataset:
    """The parts of a stream as elements of their own, as tf.distribute's iterators hand them to the replicas."""
    if part.whole:
        return dataset

    def flat(*parts):
        singles = [tf.data.Dataset.from_tensors(p) for p in parts]
        return functools.reduce(lambda a, b: a.concatenate(b), singles)

    return dataset.flat_map(flat)
