"""`map_reduce`: a function on every shard, somewhere; each answer counted once; the answers reduced as a tree."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist import calls, peers
from tf2dist.errors import ShardError, reason

_PER_ROUND = 16  # shards of each device of a peer between two exchanges: what all of them have is held in memory


def map_reduce(
    fn: Callable[[Any], Any],
    shards: Iterable[Any],
    reduce: Callable[[Any, Any], Any],
    *,
    strategy: tf.distribute.Strategy,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """Calls `fn(shard)` on the devices or workers of a strategy and reduces the answers: `reduce(reduce(a, b), c)`.

    Each shard's answer counts exactly once, whatever dies: a shard whose worker was lost is given to another one. A
    shard that is late is given to an idle worker as well; the first answer counts, and the other is not waited for.

    The reduction is a tree over the answers in the order of the shards: (0, 1), (2, 3), ..., then pairs of these. Its
    shape depends on the number of shards alone. So a `reduce` that is associative need not be commutative, and one
    that is not quite associative, a sum of floats, gives the same bits for any number of workers or devices. The
    memory that it takes grows with the logarithm of the number of shards.

    One process: a shard is computed by one of the replicas' devices. "ps": by a worker, on its first device.
    "multiworker": every peer makes the same call, computes its part of the shards, and returns the whole result.

    Args:
      fn: what a shard is mapped to: TensorFlow that can be traced, because it may run in another process, where the
        caller's Python is not; no variables of its own, no side effects, as it may run more than once for a shard.
        It gets the shard as tensors and returns any nested structure of tensors. A `tf.function` keeps its trace
        from one call of `map_reduce` to the next; with `jit_compile=True` it is compiled where it runs.
      shards: taken as they are needed, so a generator of many costs no memory. A shard is an array, a number, a list
        (an array too), or a tuple or dict of such. Dtypes are NumPy's: a Python float is f64, an int i64. Shapes may
        differ from shard to shard, dtypes and structure may not.
      reduce: makes one of two neighbouring answers, the earlier shard's first. Plain Python, called in this process,
        with what `fn` returns but with NumPy arrays in place of tensors; returns the same structure.
      strategy: as `tf2dist.join` returned it.
      progress: called with the number of shards that have been answered so far.

    Returns:
      What is left when all answers are reduced; the answer itself if there is one shard.

    Raises:
      ShardError: `fn` failed on a shard, or a shard is no arrays; names it, and has the error as its cause.
      ValueError: there are no shards, or peers were given different numbers of them.
      tf.errors.OpError: all workers are lost.
    """
    # A function that XLA compiles cannot be called on a remote device, but one that calls it can.
    function = tf.function(lambda shard: fn(shard), reduce_retracing=True)
    tree = Tree(reduce)
    answered = _by_peers if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) else _by_this_process
    for count, (number, answer) in enumerate(answered(function, shards, strategy), 1):
        tree.add(number, answer)
        if progress:
            progress(count)
    return tree.result()


class Tree:
    """Reduces answers that come in any order, always in the same pairs.

    Args:
      reduce: see `map_reduce`.
    """

    def __init__(self, reduce: Callable[[Any, Any], Any]):
        self._reduce = reduce
        self._whole: dict[tuple[int, int], Any] = {}  # (level, place): of the shards place * 2**level and on

    def add(self, number: int, answer: Any) -> None:
        """Takes the answer of a shard; no shard may come twice."""
        level = 0
        while (level, number ^ 1) in self._whole:
            other = self._whole.pop((level, number ^ 1))
            answer = self._both(other, answer) if number & 1 else self._both(answer, other)
            level, number = level + 1, number >> 1
        self._whole[level, number] = answer

    def result(self) -> Any:
        """The answer of all shards, which have been added without a gap.

        Raises:
          ValueError: there was none.
        """
        if not self._whole:
            raise ValueError("map_reduce needs at least one shard, and there is none")
        # What is left is of 2**level shards each, the largest first.
        parts = [self._whole[place] for place in sorted(self._whole, reverse=True)]
        result = parts.pop()
        while parts:
            result = self._both(parts.pop(), result)
        return result

    def _both(self, earlier: Any, later: Any) -> Any:
        result = self._reduce(earlier, later)
        try:
            tf.nest.assert_same_structure(earlier, result)
        except (TypeError, ValueError):
            raise TypeError(
                f"reduce must return what it is given two of, {_kind(earlier)}, found {_kind(result)}"
            ) from None
        return result


def _kind(answer: Any) -> str:
    return str(tf.nest.map_structure(lambda leaf: type(leaf).__name__, answer))


def _by_this_process(function, shards: Iterable, strategy) -> Iterator[tuple[int, Any]]:
    """Yields the number and the answer of each shard."""
    traced = ((number, *_traced(function, number, shard)) for number, shard in enumerate(shards))
    remote = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    devices = calls.workers(strategy) if remote else calls.local(strategy)
    return calls.answers(traced, devices, remote=remote)


def _by_peers(function, shards: Iterable, strategy) -> Iterator[tuple[int, Any]]:
    """As `_by_this_process`, in lockstep: each peer computes a part of the shards of a round, then they exchange."""
    count, rank = peers.of(strategy)
    devices = calls.local(strategy)
    numbered = enumerate(shards)
    while True:
        found = list(itertools.islice(numbered, _PER_ROUND * len(devices) * count))
        mine = ((number, *_traced(function, number, shard)) for number, shard in found[rank::count])
        answers, failed = [], None
        try:
            answers = list(calls.answers(mine, devices))
        except ShardError as error:  # the others must learn of it, or they would wait for this one
            failed = error
        sent = pickle.dumps((len(found), answers, failed))
        lengths, parts, errors = zip(*(pickle.loads(data) for data in peers.exchange(strategy, sent)), strict=True)
        if len(set(lengths)) > 1:
            raise ValueError("map_reduce was given different numbers of shards by different peers; all must be alike")
        if any(errors):
            raise min(filter(None, errors), key=lambda error: error.shard)
        yield from itertools.chain(*parts)
        if not found:
            return


def _traced(function, number: int, shard: Any):
    """A function that is traced for this shard, and the shard as tensors.

    Traced outside of any device: one trace serves all devices.
    """
    try:
        tensors = _tensors(shard)
        return function.get_concrete_function(tensors), tensors
    except Exception as error:
        raise ShardError(number, reason(error)) from error


def _tensors(shard: Any) -> Any:
    if isinstance(shard, dict):
        return {key: _tensors(part) for key, part in shard.items()}
    if isinstance(shard, tuple):
        parts = [_tensors(part) for part in shard]
        return type(shard)(*parts) if hasattr(shard, "_fields") else tuple(parts)
    if tf.is_tensor(shard):
        return shard
    array = np.asarray(shard)
    if array.dtype.kind not in "biufcSU":
        raise TypeError(f"a shard is numbers, booleans or text, found {type(shard).__name__} of dtype {array.dtype}")
    return tf.constant(array)
