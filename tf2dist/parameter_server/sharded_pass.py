"""Evaluation and prediction on workers: one pass over the data, in shards."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.execution.predict_step import PredictStep
from tf2dist.execution.steps_per_execution import EVALUATION_BATCHES
from tf2dist.execution.train_step import TrainStep
from tf2dist.input.batch_slicing import ReplicaSlices
from tf2dist.input.data_adapter import FiniteDataAdapter
from tf2dist.parameter_server import wide_sums
from tf2dist.parameter_server.worker_pool import WorkerPool, repeat_element

_SHARDS_PER_WORKER = 4  # small enough that a slow worker does not hold up the others
_UNDER_WAY_PER_WORKER = 4


class ShardedPass:
    """Computes each shard of the data on some worker.

    A shard is a pure function of its number: it counts once, whichever worker computes it, and however often.
    """

    def __init__(self, pool: WorkerPool):
        self._pool = pool
        self._functions: dict = {}  # by what they compute, and on what kind of data
        self._sent: tuple[FiniteDataAdapter | None, Any] = None, None  # the data that the workers hold, as iterators

    def evaluate(
        self, step: TrainStep, data: FiniteDataAdapter, *, one_by_one: bool
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yields how many batches were evaluated, and their metric sums; `one_by_one`: of each batch, in order."""
        steps = data.steps or 0
        if one_by_one and data.begins_anywhere:
            for _, sums, _ in self._shards("evaluate", _shard_sums(step), data, steps):
                yield 1, sums
        elif one_by_one:
            found = {n: sums for n, sums, _ in self._shards("evaluate each", _each_sums(step), data, self._few)}
            for number in range(steps):
                yield 1, [each[number // len(found)] for each in found[number % len(found)]]
        else:
            shards = min(steps, self._few)
            for number, sums, _ in self._shards("evaluate", _shard_sums(step), data, shards):
                yield len(range(number, steps, shards)), sums

    @property
    def _few(self) -> int:
        """Shards, where each reads the data from its beginning."""
        return self._pool.count * _SHARDS_PER_WORKER

    def predict(self, step: PredictStep, data: FiniteDataAdapter) -> Iterator[Any]:
        """Yields the outputs for each batch, in order: nested arrays f[b, ...]."""
        steps = data.steps or 0
        shards = self._few
        if data.begins_anywhere:
            shards = max(shards, -(-steps // EVALUATION_BATCHES))
        found: dict[int, list] = {}
        for number, (rows, *leaves), structure in self._shards("predict", _shard_outputs(step), data, shards):
            ends = np.cumsum(rows)[:-1]
            columns = [np.split(leaf, ends) for leaf in leaves]
            found[number] = [tf.nest.pack_sequence_as(structure, batch) for batch in zip(*columns, strict=True)]
        for number in range(steps):
            yield found[number % len(found)][number // len(found)]

    def _shards(
        self, name: str, compute: Callable, data: FiniteDataAdapter, shards: int
    ) -> Iterator[tuple[int, list[np.ndarray], Any]]:
        """Yields for each shard its number, and the two results of `compute(batches, n)` on its `n` batches."""
        steps = data.steps or 0
        shards = min(steps, shards)
        store, function, extra = self._prepare(name, compute, data)
        left, under_way = deque(range(shards)), deque[tuple[int, Any]]()
        try:
            while left or under_way:
                while left and len(under_way) < self._pool.count * _UNDER_WAY_PER_WORKER:
                    numbers = [tf.constant(i, tf.int64) for i in (left[0], shards, steps)]
                    under_way.append((left.popleft(), self._pool.schedule(function, (store, *numbers))))
                shard, remote = under_way[0]
                fetched = self._pool.fetch(remote)
                under_way.popleft()
                if fetched is None:  # lost with its worker, and computed again
                    left.append(shard)
                else:
                    yield shard, fetched, extra[0]
        except GeneratorExit:  # the caller has enough; what is under way is no part of what comes next
            for _, remote in under_way:
                with contextlib.suppress(Exception):
                    self._pool.fetch(remote)
            raise

    def _prepare(self, name: str, compute: Callable, data: FiniteDataAdapter):
        """The data on the workers, a function that computes a shard of it, and a list for what tracing finds out."""
        key = name, data.cache_key()
        _, function, extra = self._functions.get(key, (None, None, None))
        tensors, extra = data.remote_tensors(), extra or [None]
        last, store = self._sent
        if last is not data:
            # An iterator that always yields the same tensors keeps them on the worker: they travel once.
            store = self._pool.open_iterators(lambda: repeat_element((tensors,)))
            self._sent = data, store
        if function is None:

            @tf.function
            def function(store, shard, shards, steps):
                (held,) = self._pool.first_replica(next(store))
                n = tf.cast((steps - shard + shards - 1) // shards, tf.int32)
                batches = iter(data.single_pass(held, ReplicaSlices(), steps, shard, shards))
                result, extra[0] = compute(batches, n)
                return result

            self._functions[key] = data, function, extra
        return store, function, extra


def _shard_sums(step: TrainStep):
    """A function from `n` batches to their metric sums."""
    return lambda batches, n: (wide_sums.repeat(step, lambda: step.evaluate(next(batches)), n), ())


def _each_sums(step: TrainStep):
    """A function from `n` batches to the metric sums of each, stacked."""

    def compute(batches, n):
        none = wide_sums.zeros(step)
        arrays = [tf.TensorArray(t.dtype, n, element_shape=t.shape) for t in none]
        for i in tf.range(n):
            sums = wide_sums.add(none, step.evaluate(next(batches)))
            arrays = [a.write(i, t) for a, t in zip(arrays, sums, strict=True)]
        return [a.stack() for a in arrays], ()

    return compute


def _shard_outputs(step: PredictStep):
    """A function from `n` batches to the rows of each i64[n] with all their outputs, and the outputs' structure."""

    def compute(batches, n):
        first = step.predict(next(batches))
        structure = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), first)
        leaves = tf.nest.flatten(first)
        arrays = [tf.TensorArray(t.dtype, n, element_shape=t.shape, infer_shape=False) for t in leaves]
        arrays = [a.write(0, t) for a, t in zip(arrays, leaves, strict=True)]
        rows = tf.TensorArray(tf.int64, n, element_shape=[]).write(0, tf.shape(leaves[0], tf.int64)[0])
        for i in tf.range(1, n):
            leaves = tf.nest.flatten(step.predict(next(batches)))
            arrays = [a.write(i, t) for a, t in zip(arrays, leaves, strict=True)]
            rows = rows.write(i, tf.shape(leaves[0], tf.int64)[0])
        return [rows.stack(), *[a.concat() for a in arrays]], structure

    return compute
