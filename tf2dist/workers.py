"""A coordinator's workers run the steps, each at its own pace, on variables that the servers hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist import devices, keras3
from tf2dist.execution import BATCHES, Done
from tf2dist.local_steps import LocalSteps
from tf2dist.locked import locked
from tf2dist.parameter_server import ParameterServer
from tf2dist.parts import Part, one_by_one
from tf2dist.remote_step import RemoteStep
from tf2dist.step import Outputs, Steps
from tf2dist.untuned import untuned

_IN_FLIGHT = 2  # executions scheduled for each worker: one that runs, and one so that it does not wait for Python
_SHARDS = 4  # evaluation shards for each worker: small enough that a slow worker does not hold up the others
_UNROLLED = 4  # small steps in one turn of a loop: what servers and worker tell each other about a turn takes as long
_SMALL = 500  # operations of such a step


class Remote:
    """Schedules executions on whichever worker is free first. Methods: see `dispatch`.

    TensorFlow runs an execution again when its worker dies, so some of its steps would be applied twice. Here an
    execution first takes a ticket from a server, which says how many steps it may take; one that is run again finds
    its ticket gone and takes none. The steps that were lost are missing from the servers' own count of what was
    applied, and scheduled again, with new tickets, when nothing else is under way.
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, options: ParameterServer):
        self.strategy = strategy
        self.options = options
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.workers = strategy._num_workers
        self.part = Part(count=strategy.num_replicas_in_sync, total=strategy.num_replicas_in_sync)  # of one worker
        self.in_flight = self.workers * _IN_FLIGHT
        if options.local_steps > 1 and not self.part.whole:
            raise ValueError(
                f"local_steps={options.local_steps} needs workers with one device each, and these have "
                f"{self.part.total}; start a worker for each device"
            )
        with strategy.scope():
            # Counted on a server, by one operation each: what was applied, whoever has died since.
            self._applied = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="applied")
            self._tickets = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="tickets")
        self._sizes = [0] * self.in_flight  # steps that ticket t is for, at t % in_flight
        self._issued = 0  # tickets
        self._pending: deque = deque()
        self._counters: list = []  # of the optimizer's updates; those that go up by one a step
        self._before: list[int] = []  # what they and `_applied` were when nothing was under way
        self._lost = False  # has a worker died since?
        self._compiled: dict = {}

    def compile(self, steps: Steps):
        """`f(iterator, sizes i32[in_flight], issued i64[]) -> [*totals, steps i32[], seconds f64[]]`."""
        several = self.options.local_steps
        self._counters = keras3.counters(steps.model.optimizer)
        group = self._several(steps) if several > 1 else self._one(steps)

        @tf.function
        def execution(iterator, sizes, issued):
            # The loop has no more to do with the servers than it must: each tensor that goes there or comes from
            # there, and each condition that something there depends on, is a message in each turn.
            n, began = self._take(sizes, issued), tf.timestamp()

            @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])  # traced once, used several times
            def turn(now):
                totals = group(iterator, now)
                self._count(now if several > 1 else 1)
                return totals

            totals, done, turns = steps.zeros(), 0, _turns(turn) if several == 1 else 1
            if turns > 1:
                while done + turns <= n:
                    for _ in range(turns):
                        totals, done = steps.combine(totals, turn(1)), done + 1
            while done < n:
                now = tf.minimum(n - done, several)
                totals, done = steps.combine(totals, turn(now)), done + now
            with tf.control_dependencies(totals):
                return [*totals, done, tf.timestamp() - began]

        return execution

    def _take(self, sizes, issued):
        """Takes a ticket; returns the steps it is for, 0 if all that were issued are gone."""
        # One operation on the server, unlike adding and then reading what it has become.
        ticket = tf.raw_ops.ResourceCountUpTo(resource=self._tickets.handle, limit=tf.int64.max, T=tf.int64)
        # One that is left is for an execution that is under way.
        return tf.where(ticket < issued, sizes[ticket % self.in_flight], 0)

    def _count(self, steps) -> None:
        with tf.device(self._applied.device):  # a constant is made where it is used
            self._applied.assign_add(tf.cast(steps, tf.int64))

    def _one(self, steps: Steps):
        """A function that takes a single step and returns its totals."""
        step = RemoteStep(steps).train if self.part.whole else lambda element: steps.train(*element)

        def train(iterator, n):
            with locked(steps.model.optimizer):
                parts = self.strategy.run(step, args=(next(iterator),))
            return [tf.add_n(self.strategy.experimental_local_results(p)) for p in parts]

        return train

    def _several(self, steps: Steps):
        """A function that takes up to `local_steps` steps on a copy of the weights and returns their totals."""
        group = LocalSteps(steps)
        return lambda iterator, n: group.train(lambda: self._local(next(iterator)), n)

    def _local(self, element):
        return tf.nest.map_structure(lambda t: self.strategy.experimental_local_results(t)[0], element)

    def stream(self, feed, start: int):
        """On each worker: worker w of n takes the batches start + w, start + w + n, ..."""
        self.stop()
        self._applied.assign(start)
        tensors = feed.tensors()

        def dataset():
            stream = feed.stream(tensors, self.part, start, this_worker(), self.workers)
            return stream if isinstance(stream.element_spec, dict) else one_by_one(stream, self.part)

        return self._on_each_worker(dataset)

    def _on_each_worker(self, dataset):
        @tf.function
        def datasets():
            if not devices.on_accelerators(self.strategy):
                # What a worker has made in its memory is read as it is. tf.distribute's iterators would put another
                # two in between, which tune themselves (see `untuned`).
                return dataset()
            return self.strategy.distribute_datasets_from_function(lambda context: dataset())

        return iter(self.coordinator.create_per_worker_dataset(datasets))

    @property
    def position(self) -> int:
        """Steps that were applied, counted from 0, the beginning of the data."""
        return int(self._applied.numpy())

    def run(self, execution, iterator, n: int) -> None:
        """Schedules `n` steps, while fewer than `in_flight` executions are under way."""
        if not self._pending:
            self._tickets.assign(0)
            self._issued = 0
            self._before = self._counts()
        self._sizes[self._issued % self.in_flight] = n
        self._issued += 1
        arguments = (iterator, tf.constant(self._sizes), tf.constant(self._issued, tf.int64))
        self._pending.append((n, self.coordinator.schedule(execution, args=arguments)))

    def result(self) -> Done:
        """Waits for the execution that was scheduled first and has not been asked for."""
        n, remote = self._pending.popleft()
        fetched = self._fetch(remote)
        if fetched is None:
            done = Done(n, None, 0.0)
        else:
            *totals, steps, seconds = fetched
            done = Done(int(steps), totals, float(seconds))
        self._lost |= done.totals is None or done.steps < n
        if self._lost and not self._pending:
            self._agree()
        return done

    def _counts(self) -> list[int]:
        """The counts of all who count updates, `_applied` first."""
        return [int(counter.numpy()) for counter in (self._applied, *self._counters)]

    def _agree(self) -> None:
        """A worker that dies in an update may have told one counter of it and not the other: `_applied` holds."""
        applied = self.position - self._before[0]
        for counter, before in zip(self._counters, self._before[1:], strict=True):
            counter.assign(before + applied)
        self._lost = False

    def stop(self) -> None:
        """Executions that an error has left behind."""
        self._pending.clear()

    def _fetch(self, remote) -> list[np.ndarray] | None:
        """Waits for a scheduled function; None if it ended and its result was lost with its worker.

        Raises:
          tf.errors.OpError: the function failed, or a server is gone.
        """
        try:
            fetched = remote.fetch()
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError):
            self.coordinator.done()  # raises what failed, if it was more than this fetch
            return None
        # TensorFlow was seen, once, to call a function without outputs done that has some, having garbled the name of
        # a device in one of its messages.
        return None if fetched is None else [np.asarray(t) for t in tf.nest.flatten(fetched)]

    def evaluation(self, steps: Steps, feed) -> Iterator[list[np.ndarray]]:
        """As `Local.evaluation`."""

        def shard(batches, n):
            return steps.loop(lambda: steps.evaluate(next(batches)), n), ()

        for _, totals, _ in self._shards("evaluate", shard, feed, self.workers * _SHARDS):
            yield totals

    def prediction(self, steps: Outputs, feed) -> Iterator:
        """As `Local.prediction`."""
        shards = max(self.workers * _SHARDS, -(-feed.steps // BATCHES))
        found: dict[int, list] = {}
        for number, (rows, *leaves), like in self._shards("predict", _outputs_of(steps), feed, shards):
            ends = np.cumsum(rows)[:-1]
            columns = [np.split(leaf, ends) for leaf in leaves]
            found[number] = [tf.nest.pack_sequence_as(like, batch) for batch in zip(*columns, strict=True)]
        for step in range(feed.steps):
            yield found[step % len(found)][step // len(found)]

    def _shards(self, name: str, compute, feed, shards: int) -> Iterator[tuple[int, list[np.ndarray], Any]]:
        """Yields the number of each shard, and what `compute(batches, n)` makes of its `n` batches.

        A shard is a pure function of its number: whichever worker computes it, and however often, it counts once.
        """
        shards = min(feed.steps, shards)
        store, shard_of, extra = self._prepared(name, compute, feed)
        left = list(range(shards))
        while left:  # a shard whose result was lost with its worker is computed again
            numbers = [[tf.constant(i, tf.int64) for i in (shard, shards, feed.steps)] for shard in left]
            remotes = [self.coordinator.schedule(shard_of, args=(store, *n)) for n in numbers]
            lost = []
            for shard, remote in zip(left, remotes, strict=True):
                fetched = self._fetch(remote)
                if fetched is None:
                    lost.append(shard)
                else:
                    yield shard, fetched, extra[0]
            left = lost

    def _prepared(self, name: str, compute, feed):
        """What a pass over this feed needs on the workers: data, there already if it was the last one; a function."""
        signature = feed.signature()
        _, function, extra = self._compiled.get((name, signature), (None, None, None))
        tensors, extra = feed.tensors(), extra or [None]
        last, store = self._compiled.get("store", (None, None))
        if last is not feed:
            # An iterator that always yields the same tensors keeps them on the worker: they travel once.
            store = self._on_each_worker(lambda: always((tensors,)))
            self._compiled["store"] = feed, store
        if function is None:

            @tf.function
            def function(store, shard, shards, steps):
                (held,) = self._local(next(store))
                n = tf.cast((steps - shard + shards - 1) // shards, tf.int32)
                result, extra[0] = compute(iter(feed.one_pass(held, Part(), steps, shard, shards)), n)
                return result

            self._compiled[name, signature] = feed, function, extra
        return store, function, extra


def _outputs_of(steps: Outputs):
    """A function from `n` batches to the rows of each i64[n] and all their outputs, and the structure of those."""

    def compute(batches, n):
        first = steps.predict(next(batches))
        like = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), first)
        leaves = tf.nest.flatten(first)
        arrays = [tf.TensorArray(t.dtype, n, element_shape=t.shape, infer_shape=False) for t in leaves]
        arrays = [a.write(0, t) for a, t in zip(arrays, leaves, strict=True)]
        rows = tf.TensorArray(tf.int64, n, element_shape=[]).write(0, tf.shape(leaves[0], tf.int64)[0])
        for i in tf.range(1, n):
            leaves = tf.nest.flatten(steps.predict(next(batches)))
            arrays = [a.write(i, t) for a, t in zip(arrays, leaves, strict=True)]
            rows = rows.write(i, tf.shape(leaves[0], tf.int64)[0])
        return [rows.stack(), *[a.concat() for a in arrays]], like

    return compute


def _turns(step) -> int:
    """How many times in a row to put a step, a traced `tf.function`, into one turn of a loop."""
    small = len(step.get_concrete_function().graph.get_operations()) <= _SMALL
    return _UNROLLED if small else 1


def always(element) -> tf.data.Dataset:
    """The same element, endlessly."""
    return untuned(tf.data.Dataset.from_tensors(element).repeat())


def this_worker():
    return tf.cast(tf.distribute.coordinator.experimental_get_current_worker_index(), tf.int64)
