"""Who runs an execution of several steps, and how: this process itself, or the workers of a coordinator.

An *execution* is one call of a `tf.function` that runs many steps, because what lies between two calls (Python, or
a message to a worker) costs more than a small step does. The number of steps is an argument of the function, so
one trace serves every length.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2dist.feed import Part, one_by_one
from tf2dist.step import Steps

_IN_FLIGHT = 3  # executions scheduled for each worker: one that runs, and enough that none waits for Python
_SHARDS = 4  # evaluation shards for each worker: small enough that a slow worker does not hold up the others


@dataclass(frozen=True)
class Done:
    """What came back from one execution: its steps, its totals (NumPy arrays) and the seconds it took a worker.

    The totals are None when the worker died after its last step and before they were fetched.
    """

    steps: int
    totals: list[np.ndarray] | None
    seconds: float


def dispatcher_for(strategy: tf.distribute.Strategy) -> Local | Remote:
    """The dispatcher that fits a strategy."""
    return Remote(strategy) if isinstance(strategy, tf.distribute.ParameterServerStrategy) else Local(strategy)


class Local:
    """This process is a replica group and runs the steps itself; several such processes run in lockstep."""

    in_flight = 1

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.peers, rank = _peers(strategy)
        replicas = strategy.num_replicas_in_sync // self.peers
        self.part = Part(first=rank * replicas, count=replicas, total=strategy.num_replicas_in_sync)
        self._on_accelerators = any("CPU" not in device.upper() for device in _devices(strategy))
        self._done: deque[Done] = deque()
        self._seconds = 0.0
        self._evaluate = None

    def compile(self, steps: Steps):
        """An execution of training steps: `f(iterator, n i32[], seconds f32[]) -> [*totals, seconds]`."""
        return self._execution(steps, steps.train)

    def _execution(self, steps: Steps, step):
        part, picks = self.part, not self._on_accelerators

        def pick(element):
            if part.whole:
                return step(element)
            rank = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            return step(*(element[rank - part.first] if picks else element))

        return _execution(self.strategy, steps, pick, self.peers)

    def stream(self, feed, start: int):
        """An endless iterator over this process's parts of the batches from step `start` on."""
        return self._iterator(feed.stream(feed.local(), self.part, start))

    def _iterator(self, dataset):
        if not self._on_accelerators:
            # A replica on a CPU reads what the host has made as it is. tf.distribute's iterators would put queues
            # and threads in between, which take up to two seconds to end.
            return iter(dataset)
        dataset = one_by_one(dataset, self.part)
        return iter(self.strategy.distribute_datasets_from_function(lambda context: dataset))

    def run(self, execution, iterator, n: int) -> None:
        """Runs `n` steps."""
        began = time.perf_counter()
        *totals, seconds = execution(iterator, tf.constant(n), tf.constant(self._seconds))
        totals = [t.numpy() for t in totals]
        self._seconds = time.perf_counter() - began
        # Peers must choose the same length for the next execution, so they go by the sum of their last times.
        self._done.append(Done(n, totals, float(seconds) / self.peers if self.peers > 1 else self._seconds))

    def result(self) -> Done:
        """What came back from the execution that was run first and has not been asked for."""
        return self._done.popleft()

    def evaluation(self, steps: Steps, feed):
        """A function that evaluates every example of `feed` once and yields the totals of each execution."""
        if self._evaluate is None:
            self._evaluate = self._execution(steps, steps.evaluate)
        execution = self._evaluate

        def evaluate() -> Iterator[list[np.ndarray]]:
            iterator, left = self._iterator(feed.one_pass(feed.local(), self.part)), feed.steps
            while left:
                n = min(left, 100)  # bounds how long a signal waits
                *totals, _ = execution(iterator, tf.constant(n), tf.constant(0.0))
                yield [t.numpy() for t in totals]
                left -= n

        return evaluate


class Remote:
    """A coordinator's workers run the steps, each at its own pace, on variables that the servers hold."""

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy):
        self.strategy = strategy
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.workers = strategy._num_workers
        self.part = Part(count=strategy.num_replicas_in_sync, total=strategy.num_replicas_in_sync)  # of one worker
        self.in_flight = self.workers * _IN_FLIGHT
        self._pending: deque = deque()
        self._last = 0.0

    def compile(self, steps: Steps):
        """As `Local.compile`."""

        def one(element):
            return steps.train(element) if self.part.whole else steps.train(*element)

        return _execution(self.strategy, steps, one, peers=1)

    def stream(self, feed, start: int):
        """An iterator on each worker: worker w of n takes the batches start + w, start + w + n, ..."""
        tensors = feed.tensors()

        def dataset():
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            stream = feed.stream(tensors, self.part, start, tf.cast(worker, tf.int64), self.workers)
            return one_by_one(stream, self.part)

        return self._on_each_worker(dataset)

    def _on_each_worker(self, dataset):
        @tf.function
        def datasets():
            return self.strategy.distribute_datasets_from_function(lambda context: dataset())

        return iter(self.coordinator.create_per_worker_dataset(datasets))

    def run(self, execution, iterator, n: int) -> None:
        """Schedules `n` steps on whichever worker is free first."""
        if not self._pending:
            self._last = time.perf_counter()
        arguments = (iterator, tf.constant(n), tf.constant(0.0))
        self._pending.append((n, self.coordinator.schedule(execution, args=arguments)))

    def result(self) -> Done:
        """Waits for the execution that was scheduled first and has not been asked for."""
        n, remote = self._pending.popleft()
        fetched = self._fetch(remote)
        now = time.perf_counter()
        seconds, self._last = (now - self._last) * self.workers, now
        return Done(n, None if fetched is None else fetched[:-1], seconds)

    def _fetch(self, remote) -> list[np.ndarray] | None:
        """Waits for a scheduled function; None if it ended and its result was lost with its worker.

        Raises:
          tf.errors.OpError: the function failed, or a server is gone.
        """
        try:
            return [np.asarray(t) for t in remote.fetch()]
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError):
            self.coordinator.done()  # raises what failed, if it was more than this fetch
            return None

    def evaluation(self, steps: Steps, feed):
        """As `Local.evaluation`; a shard is a pure function of its number, so one that is run again counts once."""
        shards = min(feed.steps, self.workers * _SHARDS)
        tensors = feed.tensors()
        # An iterator that always yields the same tensors keeps them on the worker: they travel once, not by shard.
        store = self._on_each_worker(lambda: tf.data.Dataset.from_tensors((tensors,)).repeat())

        @tf.function
        def evaluate_shard(store, shard):
            flat = [self.strategy.experimental_local_results(t)[0] for t in tf.nest.flatten(next(store))]
            held = tf.nest.pack_sequence_as(tensors, flat)
            totals = steps.zeros()
            batches = iter(feed.one_pass(held, Part(), shard, shards))
            for _ in tf.range((feed.steps - shard + shards - 1) // shards):
                new = steps.evaluate(next(batches))
                totals = [t + n for t, n in zip(totals, new, strict=True)]
            return totals

        def evaluate() -> Iterator[list[np.ndarray]]:
            left = list(range(shards))
            while left:  # a shard whose result was lost with its worker is evaluated again
                arguments = [(store, tf.constant(shard, tf.int64)) for shard in left]
                remotes = [self.coordinator.schedule(evaluate_shard, args=a) for a in arguments]
                results = [self._fetch(remote) for remote in remotes]
                yield from (totals for totals in results if totals is not None)
                left = [shard for shard, totals in zip(left, results, strict=True) if totals is None]

        return evaluate


def _execution(strategy, steps: Steps, step, peers: int):
    """A `tf.function` that runs `step` n times and adds up the totals over steps, replicas and peers."""

    @tf.function
    def execution(iterator, n, seconds):
        totals = steps.zeros()
        for _ in tf.range(n):
            parts = strategy.run(step, args=(next(iterator),))
            totals = [t + tf.add_n(strategy.experimental_local_results(p)) for t, p in zip(totals, parts, strict=True)]
        totals.append(seconds)
        return _sum_over_peers(strategy, totals, peers) if peers > 1 else totals

    return execution


def _sum_over_peers(strategy, totals, peers: int):
    """Sums the totals of all peers in one collective, so that every peer logs, and decides, the same."""
    flat = tf.concat([tf.reshape(tf.cast(t, tf.float32), [-1]) for t in totals], 0)
    flat /= strategy.num_replicas_in_sync // peers  # each replica of a peer brings the whole peer's sum

    def reduce(values):
        here = tf.identity(values)  # on the replica's device: the collective asks where its input is
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

    flat = strategy.experimental_local_results(strategy.run(reduce, args=(flat,)))[0]
    pieces = tf.split(flat, [t.shape.num_elements() for t in totals])
    return [tf.cast(tf.reshape(p, t.shape), t.dtype) for p, t in zip(pieces, totals, strict=True)]


def _devices(strategy) -> tuple[str, ...]:
    """The devices of this process's replicas; none for TensorFlow's default strategy, which is one replica."""
    try:
        return tuple(strategy.extended.worker_devices)
    except RuntimeError:
        return ()


def _peers(strategy) -> tuple[int, int]:
    """How many peers train in lockstep, and the rank of this one (a chief comes first)."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1, 0
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec().as_dict()
    chiefs = len(spec.get("chief", ()))
    rank = resolver.task_id if resolver.task_type == "chief" else chiefs + resolver.task_id
    return max(1, chiefs + len(spec.get("worker", ()))), rank
