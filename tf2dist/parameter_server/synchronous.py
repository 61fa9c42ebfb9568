"""The dispatcher of synchronous updates: each is the mean of several workers' gradients on the same weights.

TensorFlow 2 has no such thing (its guide says so); TensorFlow 1 had SyncReplicasOptimizer. A worker that is late finds
old tokens and throws them away, so one that was stopped is back in step at once, and never holds up the others as long
as enough of them are left (`synchronous_update`). When a worker dies, the others get its tokens.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf2dist.errors import UsageError
from tf2dist.execution.dispatcher_interface import CountsOnServers, ExecutionResult
from tf2dist.execution.predict_step import PredictStep
from tf2dist.execution.train_step_interface import TrainStep
from tf2dist.input.batch_groups import single_batches
from tf2dist.input.batch_slicing import ReplicaSlices
from tf2dist.input.data_adapter import DataAdapter, FiniteDataAdapter
from tf2dist.parameter_server.coordinator_batches import SentBatches
from tf2dist.parameter_server.options import ParameterServer
from tf2dist.parameter_server.sharded_evaluate_predict import ShardedPass
from tf2dist.parameter_server.synchronous_update import STOP, SynchronousUpdate
from tf2dist.parameter_server.update_counter import UpdateCounter
from tf2dist.parameter_server.worker_pool import WorkerPool, repeat_element, this_worker
from tf2dist.runtime import session

_CHECK_SECONDS = 0.5  # between two looks for failed or lost workers
_GRADIENT_SECONDS = 10.0  # after a call was interrupted, for the update to be made all the same

_log = logging.getLogger("tf2dist")


class _Stream(NamedTuple):
    """Iterators on the workers over the slices of batches, and over the worker's own number; and what a batch is.

    `batches` is `SentBatches` where the coordinator reads them.
    """

    batches: Any
    worker_numbers: Any
    element_spec: Any


class _UpdatesBySpec:
    """What makes updates of a model, for each kind of batch: gradients of different kinds need queues of their own."""

    def __init__(self, make: Callable[[], SynchronousUpdate]):
        self._make = make
        self._updates: dict[tuple, SynchronousUpdate] = {}

    def update_for(self, element_spec, *, sent: bool) -> SynchronousUpdate:
        """`sent`: does the coordinator send the batches?"""
        leaves = tf.nest.flatten(element_spec)
        key = (sent, str(tf.nest.map_structure(lambda _: None, element_spec)), *leaves)
        if key not in self._updates:
            self._updates[key] = self._make()
        return self._updates[key]

    def forget(self, update: SynchronousUpdate) -> None:
        """Makes another one for its kind of batch the next time: its queues are closed, or hold what is left over."""
        self._updates = {key: known for key, known in self._updates.items() if known is not update}


class SynchronousDispatcher:
    """Makes updates of several workers' gradients. A `Dispatcher`."""

    max_in_flight = 1
    workers = 1

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, options: ParameterServer):
        self._pool = WorkerPool(strategy)
        workers, slices = self._pool.count, self._pool.slices
        self._backups, self._needed = options.backup_workers, workers - options.backup_workers
        if self._needed < 1:
            raise UsageError(
                f"backup_workers={options.backup_workers} leaves none of the {workers} workers to wait for; "
                f"at most {workers - 1} can be backups"
            )
        if not slices.single:
            raise UsageError(
                f'update="sync" needs workers with one device each, and these have {slices.total}; start a worker '
                "for each device"
            )
        self._updates = UpdateCounter(strategy)
        self._passes = ShardedPass(self._pool)
        self._result: ExecutionResult | None = None
        self._round = 0  # of the workers' executions; a round ends when the workers are needed for something else
        self._running: SynchronousUpdate | None = None  # what the workers are computing gradients for
        self._lost_tokens: Any = None  # `_LostTokens` of that
        self._forgotten = 0  # interrupted calls of the round: what they have left on servers is dropped
        self._first: int | None = None  # number of the first update of the stream; not known before it is made
        self._sent_batches = 0  # of the stream, where the coordinator reads it

    @property
    def global_step(self) -> int:
        """See `Dispatcher`."""
        return self._updates.value

    def counts_on_servers(self, step: TrainStep) -> CountsOnServers:
        """See `Dispatcher`. What a server has begun goes on without this process, but for want of gradients."""
        return CountsOnServers(self._updates.variable, self._updates.under_way, None, ())

    @property
    def asked_to_stop(self) -> bool:
        """See `Dispatcher`. This process alone runs the training."""
        return session.current().preemption.stops_training

    def compile(self, step: TrainStep) -> _UpdatesBySpec:
        """See `Dispatcher`."""
        gradient_step = step.as_gradient_step
        assert gradient_step is not None  # model_validation refuses models with steps of their own
        return _UpdatesBySpec(lambda: SynchronousUpdate(self._pool, gradient_step, self._updates, self._needed))

    def open_stream(self, data: DataAdapter, start: int, stop: int | None = None) -> _Stream:
        """See `Dispatcher`. Worker w of n reads every n-th of the slices of which updates are made.

        Or the coordinator reads batches, and workers take their slices as they come to need them.

        Raises:
          UsageError: there are backup workers, and the data is read by the coordinator.
        """
        if data.needs_this_process and self._backups:
            # Of the slices of a batch any may come too late, and which one would be a matter of speed.
            raise UsageError(
                f"backup_workers={self._backups} needs data that workers read by themselves, and this one calls Python "
                "in the coordinator; leave backup_workers out, or give arrays or a Dataset of TensorFlow operations"
            )
        self.cancel()
        self._updates.reset(start)
        self._first = None

        def dataset(tensors):
            return data.training_slices(tensors, self._needed, start, this_worker(), self._pool.count)

        numbers = self._pool.open_iterators(lambda _: repeat_element(this_worker()), on_host=True)
        if data.needs_this_process:
            read = data.training_batches(data.local_tensors(), ReplicaSlices(), start, stop=stop)
            batches = SentBatches(data.read(read, start), read.element_spec, 0)
            self._sent_batches = 0
        else:
            self._pool.log_unread_data()
            batches = self._pool.open_iterators(dataset, data.remote_arrays())
        return _Stream(batches, numbers, data.element_spec())

    has_gaps = False
    unused_batches = 0

    def schedule(self, execution: _UpdatesBySpec, stream: _Stream, steps: int, seconds: float = math.inf) -> int:
        """Makes up to `steps` updates while the workers work, however long they take."""
        sent = isinstance(stream.batches, SentBatches)
        began, update = time.perf_counter(), execution.update_for(stream.element_spec, sent=sent)
        if sent:
            due = self._sent_batches
            steps, together, shapes = stream.batches.take(range(due, due + steps))
            stream.batches.forget(range(due, due + steps))
            self._sent_batches += steps
            batches = single_batches(together, shapes, stream.element_spec)
            update.slices.send(batches, stream.element_spec, update.number)
        if begins := self._running is None:
            self._pool.keep_busy(self.cancel)
            self._round += 1
            self._running, self._lost_tokens = update, _LostTokens(self._pool, update)
            for _ in range(self._pool.count):
                last = tf.constant(STOP + self._round, tf.int64)
                self._pool.schedule(update.work, (None if sent else stream.batches, stream.worker_numbers, last))
            session.current().progress.busy_workers = list  # all of them are, until they are told to stop
        if begins or self._lost_tokens.interruptions != self._forgotten:
            update.forget_parts()
            self._forgotten = self._lost_tokens.interruptions
        self._first = update.number if self._first is None else self._first
        try:
            with _WorkerWatch(self._pool, update, self._needed, update.number + steps, self._lost_tokens):
                *sums, dropped = update.make_updates(tf.constant(steps), tf.constant(self._first, tf.int64))
        except BaseException:
            execution.forget(update)
            raise
        sums = [t.numpy() for t in sums]
        late = int(dropped) if self._backups else None  # without backups all of them are waited for
        elapsed = time.perf_counter() - began
        self._lost_tokens.usual_seconds = elapsed / steps
        self._result = ExecutionResult(steps, sums, elapsed, late)
        return steps

    def next_result(self) -> ExecutionResult:
        """See `Dispatcher`."""
        result, self._result = self._result, None
        assert result is not None  # schedule was called
        return result

    def cancel(self) -> None:
        """Ends the workers' executions; a worker that does not answer ends its execution when it does."""
        self._pool.release()
        if self._running is not None:
            # One worker may be left with the executions of all, and with those that were interrupted: enough tokens to
            # end each of them.
            counts = [self._pool.count + self._lost_tokens.interruptions] * self._pool.count
            self._running.hand_out_tokens(counts, STOP + self._round)
            if self._lost_tokens.interruptions:  # a worker may wait for a slice with a token that is late
                self._running.slices.repeat_last(counts[0])
        self._running = self._result = None

    def evaluate(
        self, step: TrainStep, data: FiniteDataAdapter, *, one_by_one: bool = False
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """See `Dispatcher`. The workers stop training for it."""
        self.cancel()
        return self._passes.evaluate(step, data, one_by_one=one_by_one)

    def predict(self, step: PredictStep, data: FiniteDataAdapter) -> Iterator[Any]:
        """See `Dispatcher`. The workers stop training for it."""
        self.cancel()
        return self._passes.predict(step, data)


def gradient_quotas(workers: int, needed: int, among: Collection[int] = ()) -> list[int]:
    """How many gradients of an update each worker computes: one, or more where fewer than `needed` workers are left.

    Of those `among` whom they were divided before, if any is left: who has come meanwhile is not waited for.
    """
    unused = session.current().unused_workers()
    present = [w for w in range(workers) if w not in unused]
    present = [w for w in present if w in among] or present
    quotas = [int(w in present) for w in range(workers)]
    for number in range(needed - len(present) if present else 0):
        quotas[present[number % len(present)]] += 1
    return quotas


class _LostTokens:
    """Finds workers whose token was lost with the connection to them, while they live.

    TensorFlow calls them again, and nobody knows whether they had taken a token before, or whether what was called
    first still takes one. So a worker whose call was interrupted is suspected until it has sent another gradient; if an
    update is not made for long, and nothing has come from it, it is to have another token. It has then passed over a
    slice of its data, as one that was lost has. Of two gradients that an update wants from it, the loss of one is not
    noticed.
    """

    def __init__(self, pool: WorkerPool, update: SynchronousUpdate):
        self._pool, self._update = pool, update
        self._before = self._seen = len(pool.interruptions())
        self._suspects: dict[int, int] = {}  # a worker, and the update that was under way when it was seen
        self._number, self._since = -1, 0.0  # of the update under way; when it was first seen
        self._given: set[int] = set()  # workers that have another token for it
        self.usual_seconds = 0.0  # that an update takes

    def begin_updates(self) -> None:
        """Notes that updates are about to be made, or by other workers; the time before does not count."""
        self._number = -1

    @property
    def interruptions(self) -> int:
        """How many calls were interrupted since this was made."""
        return len(self._pool.interruptions()) - self._before

    def find(self, quotas: Sequence[int]) -> list[int]:
        """Returns the workers that are to have another token for the update that is under way; each once."""
        calls = self._pool.interruptions()
        if len(calls) == self._seen and not self._suspects:
            return []
        number, received, now = self._update.number, self._update.received, time.monotonic()
        new, self._seen = {*calls[self._seen :]}, len(calls)
        self._suspects |= dict.fromkeys(new, number)
        if new & self._given:
            self._number = -1  # it may have lost that one, too
        self._suspects = {worker: at for worker, at in self._suspects.items() if received[worker] <= at}
        if number != self._number:
            self._number, self._since, self._given = number, now, set()
        if now - self._since < max(_GRADIENT_SECONDS, 3 * self.usual_seconds):
            return []
        return [w for w in self._suspects if quotas[w] and received[w] < number and w not in self._given]

    def note_given(self, workers: Sequence[int]) -> None:
        """Notes that these have got another token."""
        self._given.update(workers)
        for worker in workers:
            _log.warning(
                "tf2dist: a call of worker %d was interrupted; it computes another gradient, of other rows", worker
            )


class _WorkerWatch:
    """Looks for failed and lost workers while the coordinator waits for gradients, of updates before number `end`."""

    def __init__(self, pool: WorkerPool, update: SynchronousUpdate, needed: int, end: int, lost_tokens: _LostTokens):
        self._pool, self._update, self._needed, self._end = pool, update, needed, end
        self._lost_tokens = lost_tokens
        lost_tokens.begin_updates()
        self._quotas = gradient_quotas(pool.count, needed)
        self._set_quotas(self._quotas)
        self._error: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _WorkerWatch:
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        while not self._over.wait(_CHECK_SECONDS):
            try:
                self._pool.raise_failure()
            except Exception as failure:
                self._error = failure
                self._update.close()
                return
            try:
                now = {worker for worker, quota in enumerate(self._quotas) if quota}
                self._replace_tokens(gradient_quotas(self._pool.count, self._needed, now))
            except tf.errors.OpError:  # of a server that does not answer: `raise_failure` says so if it stays so
                continue

    def _set_quotas(self, quotas: list[int]) -> None:
        if any(new and not old for new, old in zip(quotas, self._update.quotas, strict=True)):
            session.current().progress.compiles(reads_again=True)  # by a worker that is back, for which all others wait
        self._update.set_quotas(quotas)

    def _replace_tokens(self, quotas: list[int]) -> None:
        """Hands out the tokens of workers that are lost, and those that were lost with a connection."""
        if quotas != self._quotas:
            more = [max(0, new - old) for new, old in zip(quotas, self._quotas, strict=True)]
            self._set_quotas(quotas)
            self._update.hand_out_more(more, self._end)
            self._quotas = quotas
            self._lost_tokens.begin_updates()
        if lost := self._lost_tokens.find(quotas):
            self._update.hand_out_more([int(w in lost) for w in range(self._pool.count)], self._end)
            self._lost_tokens.note_given(lost)
