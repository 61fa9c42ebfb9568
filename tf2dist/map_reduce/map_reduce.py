"""`map_reduce`: calls a function on every shard, counts each result once, and reduces the results as a tree."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.errors import ShardError, reason
from tf2dist.map_reduce import task_scheduler
from tf2dist.map_reduce.reduction_tree import ReductionTree
from tf2dist.map_reduce.task_scheduler import Task, TaskScheduler
from tf2dist.runtime import collectives, session

_SHARDS_PER_ROUND = 16  # for each device of a peer, between two exchanges: a round's results are held in memory


def map_reduce(
    fn: Callable[[Any], Any],
    shards: Iterable[Any],
    reduce: Callable[[Any, Any], Any],
    *,
    strategy: tf.distribute.Strategy,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """Calls `fn(shard)` on the devices or workers of a strategy and reduces the results: `reduce(reduce(a, b), c)`.

    Each shard's result counts exactly once, whichever workers die: a shard whose worker was lost is retried on another
    worker, and a worker that was started again gets shards again. A late shard is also given to an idle worker; the
    first result counts, and the other is not waited for.

    Results are reduced as a tree in the order of the shards: (0, 1), (2, 3), ..., then pairs of these. Its shape
    depends on the number of shards alone. So an associative `reduce` need not be commutative, and one that is not
    quite associative, such as a sum of floats, gives the same bits for any number of workers or devices. Memory grows
    with the logarithm of the number of shards.

    One process: each shard runs on one of the replicas' devices. "ps": on a worker, on its first device.
    "multiworker": every peer makes the same call, computes its part of the shards, and returns the whole result.

    Args:
      fn: maps a shard to its result. Must be traceable by `tf.function`, because it may run in another process, and
        must have no variables and no side effects, because it may run more than once for a shard. Takes the shard as
        tensors and returns any nested structure of tensors. A `tf.function` keeps its trace from one call of
        `map_reduce` to the next; with `jit_compile=True` it is compiled where it runs.
      shards: an iterable, consumed as devices become free, so a generator of many shards costs no memory. A shard is
        an array, a number, a list (converted to an array), or a tuple or dict of these. Dtypes are NumPy's: a Python
        float is f64, an int i64. Shapes may differ from shard to shard; dtypes and structure may not.
      reduce: combines two neighbouring results, the earlier shard's first, into one of the same structure. Plain
        Python, called in this process, with NumPy arrays in place of `fn`'s tensors.
      strategy: as `tf2dist.join` returned it.
      progress: called with the number of shards done so far.

    Returns:
      The reduction of all results; the result itself if there is one shard.

    Raises:
      ShardError: `fn` failed on a shard, or a shard cannot be converted to tensors; the error is its cause (in other
        peers than the one that computed the shard: if it can be pickled).
      ValueError: there are no shards, or peers were given different numbers of them.
      tf.errors.OpError: no worker can be reached. (For workers that are lost the job waits, as for training.)
    """
    # A function that XLA compiles cannot be called on a remote device, but one that calls it can.
    function = tf.function(lambda shard: fn(shard), reduce_retracing=True)
    tree = ReductionTree(reduce)
    multiworker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    map_shards = _map_with_peers if multiworker else _map_alone
    with session.current().call():
        for count, (number, result) in enumerate(map_shards(function, shards, strategy), 1):
            tree.add(number, result)
            if progress:
                progress(count)
    return tree.result()


def _map_alone(function: Any, shards: Iterable[Any], strategy: tf.distribute.Strategy) -> Iterator[tuple[int, Any]]:
    """Yields the number and the result of each shard, in the order in which they finish."""
    tasks = (_task(function, number, shard) for number, shard in enumerate(shards))
    remote = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    devices = task_scheduler.worker_devices(strategy) if remote else task_scheduler.local_devices(strategy)
    return session.current().progress.steps_of(TaskScheduler(devices, remote=remote).run(tasks))


def _map_with_peers(
    function: Any, shards: Iterable[Any], strategy: tf.distribute.Strategy
) -> Iterator[tuple[int, Any]]:
    """Does what `_map_alone` does, in rounds: each peer computes a part of a round's shards, then all exchange."""
    count, rank = collectives.peers(strategy)
    devices = task_scheduler.local_devices(strategy)
    numbered = enumerate(shards)
    while True:
        in_round = list(itertools.islice(numbered, _SHARDS_PER_ROUND * len(devices) * count))
        tasks = (_task(function, number, shard) for number, shard in in_round[rank::count])
        results: list[tuple[int, Any]] = []
        failure: ShardError | None = None
        try:
            with session.current().progress.steps():
                results = list(TaskScheduler(devices).run(tasks))
        except ShardError as error:  # raised after the exchange: the peers wait in it for this process
            failure = error
        cause = failure and failure.__cause__  # which pickle leaves out
        sent = pickle.dumps((len(in_round), results, failure, cause if _can_be_sent(cause) else None))
        lengths, parts, failures, causes = zip(
            *(pickle.loads(data) for data in collectives.all_gather(strategy, sent)), strict=True
        )
        if len(set(lengths)) > 1:
            raise ValueError("map_reduce was given different numbers of shards by different peers; all must be alike")
        if any(failures):
            first, why = min(
                ((error, cause) for error, cause in zip(failures, causes, strict=True) if error),
                key=lambda found: found[0].shard,
            )
            if failure and failure.shard == first.shard:
                raise failure  # with its traceback
            raise first from why
        yield from itertools.chain(*parts)
        if not in_round:
            return


def _can_be_sent(error: BaseException | None) -> bool:
    """Returns whether another process can read the error, as it can TensorFlow's."""
    try:
        return isinstance(pickle.loads(pickle.dumps(error)), BaseException)
    except Exception:  # whatever its class does then
        return False


def _task(function: Any, number: int, shard: Any) -> Task:
    """Traces the function for a shard, outside of any device, so that one trace serves all devices."""
    try:
        tensors = _tensors(shard)
        return Task(number, function.get_concrete_function(tensors), tensors)
    except Exception as error:
        raise ShardError(number, reason(error)) from error


def _tensors(shard: Any) -> Any:
    """Converts the leaves of a shard to tensors of NumPy's dtypes."""
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
