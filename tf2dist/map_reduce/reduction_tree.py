"""A tree that reduces results in the same pairs, in whatever order they arrive."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class ReductionTree:
    """Reduces the results of numbered shards, always in the same pairs: (0, 1), (2, 3), ..., then pairs of these.

    The pairs depend on the number of shards alone, not on the order in which results are added. At most one result a
    level is held, so memory grows with the logarithm of the number of shards when they are added roughly in order.

    Args:
      reduce: see `map_reduce`.
    """

    def __init__(self, reduce: Callable[[Any, Any], Any]):
        self._reduce = reduce
        self._pending: dict[tuple[int, int], Any] = {}  # (level, i): of the shards i * 2**level to (i + 1) * 2**level

    def add(self, number: int, result: Any) -> None:
        """Adds the result of shard `number`; each shard is added once."""
        level = 0
        while (level, number ^ 1) in self._pending:
            sibling = self._pending.pop((level, number ^ 1))
            result = self._reduce_pair(sibling, result) if number & 1 else self._reduce_pair(result, sibling)
            level, number = level + 1, number >> 1
        self._pending[level, number] = result

    def result(self) -> Any:
        """Returns the reduction of all shards; their numbers must have no gap.

        Raises:
          ValueError: no shard was added.
        """
        if not self._pending:
            raise ValueError("map_reduce needs at least one shard, and there is none")
        # What is pending are subtrees of 2**level shards; the largest holds the first shards.
        subtrees = [self._pending[node] for node in sorted(self._pending, reverse=True)]
        result = subtrees.pop()
        while subtrees:
            result = self._reduce_pair(subtrees.pop(), result)
        return result

    def _reduce_pair(self, earlier: Any, later: Any) -> Any:
        result = self._reduce(earlier, later)
        try:
            tf.nest.assert_same_structure(earlier, result)
        except (TypeError, ValueError):
            raise TypeError(
                f"reduce must return what it is given two of, {_types(earlier)}, found {_types(result)}"
            ) from None
        return result


def _types(result: Any) -> str:
    return str(tf.nest.map_structure(lambda leaf: type(leaf).__name__, result))
