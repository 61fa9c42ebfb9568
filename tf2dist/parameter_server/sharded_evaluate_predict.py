"""Evaluation and prediction on workers: one pass over the data, in shards."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat.model import stateful_layer
from tf2dist.execution.predict_step import PredictStep
from tf2dist.execution.steps_per_execution import EVALUATION_BATCHES
from tf2dist.execution.train_step_interface import TrainStep
from tf2dist.input.batch_groups import group_signature, grouped, nbytes, number_of_batches, single_batches
from tf2dist.input.batch_slicing import ReplicaSlices
from tf2dist.input.data_adapter import FiniteDataAdapter
from tf2dist.parameter_server import worker_metric_sums
from tf2dist.parameter_server.execution_timeout import ExecutionTimeout
from tf2dist.parameter_server.worker_pool import WorkerPool, repeat_element
from tf2dist.runtime import session

_SHARDS_PER_WORKER = 4  # small enough that a slow worker does not hold up the others
_UNDER_WAY_PER_WORKER = 4
_BYTES_PER_WORKER = 64 << 20  # of shards that are under way; one a worker may be larger
_LOOK_SECONDS = 0.5  # between two looks whether a worker is idle
_FIRST_SECONDS = 10.0  # to wait for the first shard, before another worker is to compute it, too


@dataclass(frozen=True)
class _Shard:
    """A part of the data.

    Attributes:
      number: shards count from 0.
      batches: how many it has.
      arguments: of the function that computes it.
      nbytes: of the arguments that are sent.
    """

    number: int
    batches: int
    arguments: tuple
    nbytes: int = 0


@dataclass
class _Function:
    """A `tf.function` of a shard's arguments.

    Attributes:
      call: the function.
      found: what tracing it has found out, in a list.
      data: an adapter of the kind of data that it is for; the key may have the identity of something that it holds.
      timeout: how long to wait for a shard while a worker is idle.
    """

    call: Any
    found: list[Any]
    data: FiniteDataAdapter
    timeout: ExecutionTimeout = field(default_factory=lambda: ExecutionTimeout(_FIRST_SECONDS))


@dataclass(frozen=True)
class _Scheduled:
    """A shard that a worker computes, since a time of `time.monotonic`."""

    shard: _Shard
    remote: Any
    since: float


class ShardedPass:
    """Computes each shard of the data on some worker.

    A shard is a pure function of what is sent: it counts once, whichever worker computes it, and however often. Arrays
    are on the workers, which are told numbers of shards. A dataset is read here, once, and its batches are sent.
    """

    def __init__(self, pool: WorkerPool):
        self._pool = pool
        self._functions: dict[tuple, _Function] = {}  # by what they compute, and on what kind of data
        self._sent: tuple[FiniteDataAdapter | None, Any] = None, None  # the data that the workers hold, as iterators

    def evaluate(
        self, step: TrainStep, data: FiniteDataAdapter, *, one_by_one: bool
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yields how many batches were evaluated, and their metric sums; `one_by_one`: of each batch, in order."""
        if one_by_one or step.in_order:
            function = self._function("evaluate each", _each_sums(step), data)
            shards = data.steps or 0 if data.begins_anywhere else self._enough(data, step.model)
            for shard, sums in _in_order(self._results(function, self._shards(data, shards))):
                yield from ((1, [each[number] for each in sums]) for number in range(shard.batches))
        else:
            function = self._function("evaluate", _shard_sums(step), data)
            for shard, sums in self._results(function, self._shards(data, self._enough(data, step.model))):
                yield shard.batches, sums

    def predict(self, step: PredictStep, data: FiniteDataAdapter) -> Iterator[Any]:
        """Yields the outputs for each batch, in order: nested arrays f[b, ...]."""
        function = self._function("predict", _shard_outputs(step), data)
        found: dict[int, list] = {}
        shards = self._shards(data, self._enough(data, step.model))
        for shard, leaves in _in_order(self._results(function, shards)):
            columns = [_apart(values, shapes) for values, shapes in zip(leaves[::2], leaves[1::2], strict=True)]
            batches = [tf.nest.pack_sequence_as(function.found[0], batch) for batch in zip(*columns, strict=True)]
            if data.begins_anywhere:  # then shard 0 has the batches 0, n, 2 n, ...
                found[shard.number] = batches
            else:
                yield from batches
        for number in range(data.steps or 0 if found else 0):
            yield found[number % len(found)][number // len(found)]

    def _enough(self, data: FiniteDataAdapter, model: keras.Model) -> int:
        """The number of shards: several for each worker, and none of many batches."""
        if data.begins_anywhere and stateful_layer(model):  # one worker computes all batches, one after the other
            return 1
        return max(self._pool.count * _SHARDS_PER_WORKER, -(-(data.steps or 0) // EVALUATION_BATCHES))

    def _shards(self, data: FiniteDataAdapter, count: int) -> Iterator[_Shard]:
        """The data in about `count` shards, or in more of a dataset with more than a worker takes at once."""
        steps = data.steps or 0
        if data.begins_anywhere:
            count, store = min(steps, count), self._send(data)
            for number in range(count):
                arguments = (store, *(tf.constant(i, tf.int64) for i in (number, count, steps)))
                yield _Shard(number, len(range(number, steps, count)), arguments)
            return
        batches = data.read(data.single_pass(data.local_tensors(), ReplicaSlices(), steps))
        read = 0
        for number, (n, together, shapes) in enumerate(grouped(batches, min(EVALUATION_BATCHES, -(-steps // count)))):
            yield _Shard(number, n, (together, shapes), sum(map(nbytes, together)))
            read += n
        if read < steps:
            raise tf.errors.OutOfRangeError(None, None, f"the dataset has {read} batches")

    def _results(self, function: _Function, shards: Iterator[_Shard]) -> Iterator[tuple[_Shard, list[np.ndarray]]]:
        """Yields the shards with what the function returns for them, as they come."""
        under_way: list[_Scheduled] = []

        def schedule(shard: _Shard) -> None:
            remote = self._pool.schedule(function.call, shard.arguments)
            under_way.append(_Scheduled(shard, remote, time.monotonic()))

        try:
            while True:
                while self._takes_more(under_way) and (shard := next(shards, None)) is not None:
                    schedule(shard)
                if not under_way:
                    return
                idle = self._pool.has_idle_worker()
                remotes = [s.remote for s in under_way]
                place = self._pool.first_ended(remotes, function.timeout.next(1) if idle else _LOOK_SECONDS)
                if place is None and not idle:  # which changes while this waits
                    continue
                if place is None:  # a worker is stopped, or slow: another one is to compute it, too
                    for shard in {s.shard.number: s.shard for s in under_way}.values():
                        schedule(shard)
                    continue
                ended = under_way[place]
                fetched = self._pool.fetch(ended.remote)
                del under_way[place]
                if fetched is None:  # lost with its worker
                    schedule(ended.shard)
                    continue
                function.timeout.observe(1, time.monotonic() - ended.since)
                twice = [s for s in under_way if s.shard is ended.shard]
                self._pool.abandon([s.remote for s in twice])
                under_way = [s for s in under_way if s not in twice]
                session.current().progress.made()  # also where it waits for others, to be in order
                yield ended.shard, fetched
        except BaseException:  # the caller has enough, say; what is under way is no part of what comes next
            self._drain([s.remote for s in under_way], function.timeout.next(1))
            raise

    def _takes_more(self, under_way: list[_Scheduled]) -> bool:
        """Whether another shard may be scheduled: enough that no worker waits, within this process's memory."""
        if len(under_way) < self._pool.count:
            return True
        held = sum(s.shard.nbytes for s in under_way)
        return len(under_way) < self._pool.count * _UNDER_WAY_PER_WORKER and held < self._pool.count * _BYTES_PER_WORKER

    def _drain(self, remotes: list[Any], limit: float) -> None:
        """Waits for functions whose results nobody wants, but not for a worker that is stopped."""
        while remotes and (place := self._pool.first_ended(remotes, limit)) is not None:
            with contextlib.suppress(Exception):
                self._pool.fetch(remotes.pop(place))
        self._pool.abandon(remotes)

    def _send(self, data: FiniteDataAdapter) -> Any:
        """The data on the workers, in their hosts' memory: an iterator that always yields the same keeps it there."""
        last, store = self._sent
        if last is not data:
            store = self._pool.open_iterators(
                lambda tensors: repeat_element((tensors,)), data.remote_arrays(), on_host=True
            )
            self._sent = data, store
        return store

    def _function(self, name: str, compute: Callable, data: FiniteDataAdapter) -> _Function:
        """A function of a shard's arguments.

        `compute(batches, n)` returns what the function is to return for `n` batches, and what it has found out.
        """
        key = name, data.cache_key()
        if key not in self._functions:
            found: list[Any] = [None]
            of_shard = self._of_arrays if data.begins_anywhere else self._of_group
            self._functions[key] = _Function(of_shard(compute, data, found), found, data)
        return self._functions[key]

    def _of_arrays(self, compute: Callable, data: FiniteDataAdapter, found: list[Any]):
        @tf.function(autograph=False)
        def function(store, shard, shards, steps):
            (held,) = next(store)
            n = tf.cast((steps - shard + shards - 1) // shards, tf.int32)
            result, found[0] = compute(iter(data.single_pass(held, ReplicaSlices(), steps, shard, shards)), n)
            return result

        return function

    def _of_group(self, compute: Callable, data: FiniteDataAdapter, found: list[Any]):
        spec = data.element_spec()

        @tf.function(input_signature=group_signature(spec), autograph=False)
        def function(together, shapes):
            n = tf.cast(number_of_batches(shapes), tf.int32)
            result, found[0] = compute(iter(single_batches(together, shapes, spec)), n)
            return result

        return function


def _in_order(results: Iterator[tuple[_Shard, Any]]) -> Iterator[tuple[_Shard, Any]]:
    """The results, each when those of all shards before it were yielded."""
    waiting: list[tuple[int, _Shard, Any]] = []
    due = 0
    for shard, result in results:
        heapq.heappush(waiting, (shard.number, shard, result))
        while waiting and waiting[0][0] == due:
            yield heapq.heappop(waiting)[1:]
            due += 1


def _shard_sums(step: TrainStep):
    """A function from `n` batches to their metric sums."""
    return lambda batches, n: (worker_metric_sums.repeat(step, lambda: step.evaluate(next(batches)), n), ())


def _each_sums(step: TrainStep):
    """A function from `n` batches to the metric sums of each, stacked."""

    def compute(batches, n):
        none = worker_metric_sums.zeros(step)
        arrays = [tf.TensorArray(t.dtype, n, element_shape=t.shape) for t in none]

        def write(i, arrays):
            sums = worker_metric_sums.add(step, none, step.evaluate(next(batches)))
            return [a.write(i, t) for a, t in zip(arrays, sums, strict=True)]

        return [a.stack() for a in keras.ops.fori_loop(0, n, write, arrays)], ()

    return compute


def _shard_outputs(step: PredictStep):
    """A function from `n` batches to their outputs, and their structure.

    Of each output there are two tensors: its values [?] of all batches, and its shape i64[n, rank] in each. Boxes in
    images, say, or words need not be as many in one batch as in the next.
    """

    def compute(batches, n):
        first = step.predict(next(batches))
        structure = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), first)
        leaves = _values_and_shapes(first)
        arrays = [tf.TensorArray(t.dtype, n, element_shape=t.shape, infer_shape=False) for t in leaves]
        arrays = [a.write(0, t) for a, t in zip(arrays, leaves, strict=True)]

        def write(i, arrays):
            leaves = _values_and_shapes(step.predict(next(batches)))
            return [a.write(i, t) for a, t in zip(arrays, leaves, strict=True)]

        arrays = keras.ops.fori_loop(1, n, write, arrays)
        return [a.stack() if number % 2 else a.concat() for number, a in enumerate(arrays)], structure

    return compute


def _values_and_shapes(outputs) -> list[tf.Tensor]:
    """The values [?] and the shape i64[rank] of each output, in turn."""
    leaves = tf.nest.flatten(outputs)
    return [t for leaf in leaves for t in (_flat(leaf), tf.shape(leaf, tf.int64))]


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    values = tf.reshape(tensor, [-1])
    values.set_shape([None])  # it may have another number in the next batch
    return values


def _apart(values: np.ndarray, shapes: np.ndarray) -> list[np.ndarray]:
    """The outputs of each batch, of these values [?] and shapes i64[n, rank]."""
    parts = np.split(values, np.cumsum(shapes.prod(axis=1))[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
