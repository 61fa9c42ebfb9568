"""A process that runs the steps itself, on one device or several; several such processes run in lockstep."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf2dist import devices, peers
from tf2dist.execution import BATCHES, Done
from tf2dist.parts import Part, one_by_one
from tf2dist.step import Outputs, Steps


class Local:
    """Runs the steps on this process's replicas. Methods: see `dispatch`."""

    in_flight = 1

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.peers, rank = peers.of(strategy)
        replicas = strategy.num_replicas_in_sync // self.peers
        self.part = Part(first=rank * replicas, count=replicas, total=strategy.num_replicas_in_sync)
        self._on_accelerators = devices.on_accelerators(strategy)
        self._done: deque[Done] = deque()
        self.position = 0
        self._seconds = 0.0
        self._compiled: dict = {}

    def compile(self, steps: Steps):
        """`f(iterator, n i32[], seconds f32[]) -> [*totals, seconds]`."""
        return self._execution(steps, steps.train)

    def _execution(self, steps: Steps, step):
        strategy = self.strategy

        @tf.function
        def execution(iterator, n, seconds):
            def one():
                parts = strategy.run(self._pick(step), args=(self._next(iterator),))
                return [tf.add_n(strategy.experimental_local_results(p)) for p in parts]

            totals = [*steps.loop(one, n), seconds]
            return peers.sum(strategy, totals) if self.peers > 1 else totals

        return execution

    def _next(self, iterator):
        """What the replicas of this process take in one step."""
        spec = iterator.element_spec
        if isinstance(spec, dict) and list(spec) == ["each"] and not self._on_accelerators:
            return tuple(next(iterator)["each"] for _ in range(self.part.count))
        return next(iterator)

    def _pick(self, step):
        part, picks = self.part, not self._on_accelerators

        def picked(element):
            if part.whole:
                return step(element)
            rank = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            mine = element[rank - part.first] if picks else element
            return step(*(mine["each"] if isinstance(mine, dict) else mine))

        return picked

    def stream(self, feed, start: int):
        """Yields this process's parts of each batch."""
        self.position = start
        return self._iterator(feed.stream(feed.local(), self.part, start))

    def _iterator(self, dataset):
        if not self._on_accelerators:
            # A replica on a CPU reads what the host has made as it is. tf.distribute's iterators would put queues
            # and threads in between.
            return iter(dataset)
        if not isinstance(dataset.element_spec, dict):
            dataset = one_by_one(dataset, self.part)
        return iter(self.strategy.distribute_datasets_from_function(lambda context: dataset))

    def run(self, execution, iterator, n: int) -> None:
        """Runs `n` steps."""
        began = time.perf_counter()
        *totals, seconds = execution(iterator, tf.constant(n), tf.constant(self._seconds))
        totals = [t.numpy() for t in totals]
        self._seconds = time.perf_counter() - began
        # Peers must choose the same length for the next execution, so they go by the sum of their last times.
        self.position += n
        self._done.append(Done(n, totals, float(seconds) / self.peers if self.peers > 1 else self._seconds))

    def result(self) -> Done:
        """What the execution brought."""
        return self._done.popleft()

    def stop(self) -> None:
        """Nothing is under way between two calls."""
        self._done.clear()

    def evaluation(self, steps: Steps, feed) -> Iterator[list[np.ndarray]]:
        """Yields the totals of each execution of one pass over `feed`."""
        execution = self._once("evaluate", lambda: self._execution(steps, steps.evaluate))
        iterator, left = self._iterator(feed.one_pass(feed.local(), self.part)), feed.steps
        while left:
            n = min(left, BATCHES)
            *totals, _ = execution(iterator, tf.constant(n), tf.constant(0.0))
            yield [t.numpy() for t in totals]
            left -= n

    def prediction(self, steps: Outputs, feed) -> Iterator:
        """Yields the outputs for each batch of one pass over `feed`, a nested structure of arrays f[b, ...]."""
        execution = self._once("predict", lambda: self._predictions(steps))
        iterator = self._iterator(feed.one_pass(feed.local(), self.part))
        for _ in range(feed.steps):
            yield tf.nest.map_structure(lambda t: t.numpy(), execution(iterator))

    def _predictions(self, steps: Outputs):
        strategy = self.strategy

        def predict(batch, share=None):
            outputs = steps.predict(batch)
            if share is None:
                return outputs
            return tf.nest.map_structure(
                lambda t: t[: tf.cast(share > 0, tf.int64) * tf.shape(t, tf.int64)[0]], outputs
            )

        @tf.function(reduce_retracing=True)
        def execution(iterator):
            outputs = strategy.run(self._pick(predict), args=(self._next(iterator),))
            if self.part.whole:
                return tf.nest.map_structure(lambda t: strategy.experimental_local_results(t)[0], outputs)
            if self.peers > 1:
                return tf.nest.map_structure(lambda t: strategy.gather(t, axis=0), outputs)
            return tf.nest.map_structure(lambda t: tf.concat(strategy.experimental_local_results(t), 0), outputs)

        return execution

    def _once(self, name: str, make):
        if name not in self._compiled:
            self._compiled[name] = make()
        return self._compiled[name]
