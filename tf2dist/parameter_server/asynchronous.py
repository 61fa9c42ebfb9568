"""The dispatcher of asynchronous updates: each worker makes updates at its own pace."""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.compat.optimizers import update_counters
from tf2dist.errors import UsageError
from tf2dist.execution.dispatcher_interface import CountsOnServers, ExecutionResult
from tf2dist.execution.predict_step import PredictStep
from tf2dist.execution.train_step_interface import TrainStep
from tf2dist.input.batch_slicing import one_slice_an_element
from tf2dist.input.data_adapter import BatchMaker, DataAdapter, FiniteDataAdapter
from tf2dist.parameter_server.batch_numbers import BatchNumbers
from tf2dist.parameter_server.coordinator_batches import SentBatches
from tf2dist.parameter_server.execution_functions import ExecutionFunctions
from tf2dist.parameter_server.execution_timeout import ExecutionTimeout
from tf2dist.parameter_server.fencing_tokens import FencingTokens, Token
from tf2dist.parameter_server.options import ParameterServer
from tf2dist.parameter_server.sharded_evaluate_predict import ShardedPass
from tf2dist.parameter_server.update_counter import UpdateCounter
from tf2dist.parameter_server.worker_pool import WorkerPool, this_worker
from tf2dist.runtime import devices, session

_log = logging.getLogger("tf2dist")
_LOOK_SECONDS = 0.5  # between two looks whether a worker is idle
_EXECUTIONS_PER_WORKER = 2  # one that runs, and one more so that the worker does not wait for Python
_KEPT_BYTES_PER_WORKER = 64 << 20  # of batches that are under way; beyond, no execution waits


class AsynchronousDispatcher:
    """Schedules executions on whichever worker is free first, and returns results as they come. A `Dispatcher`.

    TensorFlow runs an execution again when its worker dies, so some of its steps would be applied twice. Each
    execution therefore takes a fencing token first. Steps that were lost with a worker are missing from the servers'
    count of what was applied; the loop schedules them again, with new tokens, when nothing else is under way. Of
    arrays, and of what the coordinator reads, the token says which batches are used, and those of steps that were lost
    are the first to be used then.

    A worker that is slow, or stopped, does not hold up the others: when one of them has nothing left to do, and the
    executions that are left take much longer than others, their tokens are revoked, and the loop schedules again what
    they have not made. What they have made is counted, and missing in the logs. (Not where an update is no single call
    of a server, with several servers or several devices a worker: there it could not be told what they apply later.)
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, options: ParameterServer):
        self._pool = WorkerPool(strategy)
        self._options = options
        self._slices = self._pool.slices
        if options.local_steps > 1 and not self._slices.single:
            raise UsageError(
                f"local_steps={options.local_steps} needs workers with one device each, and these have "
                f"{self._slices.total}; start a worker for each device"
            )
        self.workers = self._pool.count
        self._updates = UpdateCounter(strategy)
        self._tokens = FencingTokens(strategy, self.workers * _EXECUTIONS_PER_WORKER, beside=self._updates.variable)
        self._passes = ShardedPass(self._pool)
        self._scheduled: list[tuple[Token, Any]] = []  # with the remote value of each execution
        self._numbers, self._by_number = BatchNumbers(0), False  # of batches; is it known which were used?
        self._sent_or_gone: Callable[[], SentBatches | None] = lambda: None  # which the loop's stream keeps
        self._lost_steps = False  # since nothing was under way
        self._abandoned = 0  # executions that are not waited for, and whose result the loop has not got yet
        self._timeout = ExecutionTimeout()

    @property
    def _sent(self) -> SentBatches | None:
        """The batches that the coordinator reads, if it does, as long as somebody has the stream."""
        return self._sent_or_gone()

    @property
    def max_in_flight(self) -> int:
        """See `Dispatcher`. Fewer where this process holds many bytes of batches that are under way."""
        sent = self._sent
        full = sent is not None and sent.nbytes > self.workers * _KEPT_BYTES_PER_WORKER
        return self.workers * (1 if full else _EXECUTIONS_PER_WORKER)

    @property
    def global_step(self) -> int:
        """See `Dispatcher`."""
        return self._updates.value

    def counts_on_servers(self, step: TrainStep) -> CountsOnServers | None:
        """See `Dispatcher`."""
        if step.as_gradient_step is None or not self._slices.single:
            return None  # a worker writes variables one after the other, and counts in the end
        counters = update_counters(step.model.optimizer)
        return CountsOnServers(self._updates.variable, self._updates.under_way, self._tokens.counts, counters)

    @property
    def asked_to_stop(self) -> bool:
        """See `Dispatcher`. This process alone runs the training."""
        return session.current().preemption.stops_training

    def compile(self, step: TrainStep) -> ExecutionFunctions:
        """See `Dispatcher`."""
        # A step of the user's own may make no update, or several, by several optimizers.
        self._updates.follow(update_counters(step.model.optimizer) if step.as_gradient_step else ())
        self._timeout = ExecutionTimeout()
        return ExecutionFunctions(self._pool, self._tokens, self._updates, step, self._options.local_steps)

    def open_stream(self, data: DataAdapter, start: int, stop: int | None = None) -> _Stream:
        """See `Dispatcher`.

        A worker makes batches of arrays by the numbers it was given. The coordinator reads a Dataset, and sends each
        execution the next batches. Other data, and a Dataset whose options say how, is divided among the workers.

        Raises:
          UsageError: it cannot be divided among so many.
        """
        data = data.divided(self._pool.count)
        self.cancel()
        self._updates.reset(start)
        self._tokens.forget()
        self._numbers = BatchNumbers(start)
        self._sent_or_gone = lambda: None
        maker = data.by_number() if self._slices.single and not devices.on_accelerators(self._pool.strategy) else None
        self._by_number = self._slices.single and (maker is not None or data.needs_one_reader)
        if maker is not None:
            return _Stream(self._pool.send(data.remote_arrays()), maker)

        def dataset(tensors):
            batches = data.training_batches(tensors, self._slices, start, this_worker(), self._pool.count)
            return batches if data.element_per_replica else one_slice_an_element(batches, self._slices)

        if data.needs_one_reader:
            # Where it is not known which batches were used, lost steps are made with later ones, beyond `stop`.
            last = stop if self._by_number else None
            batches = data.training_batches(data.local_tensors(), self._slices, start, stop=last)
            sent = SentBatches(data.read(batches, start), batches.element_spec, start)
            self._sent_or_gone = weakref.ref(sent)
            return _Stream(sent, None)
        self._pool.log_unread_data()
        return _Stream(self._pool.open_iterators(dataset, data.remote_arrays()), None)

    def schedule(self, execution: ExecutionFunctions, stream: _Stream, steps: int, seconds: float = math.inf) -> int:
        """See `Dispatcher`."""
        if self.workers == 1:
            seconds = math.inf  # no other worker could make the steps
        if not self._scheduled:
            self._updates.snapshot()
        numbers = self._numbers.hand_out(steps)
        if isinstance(stream.source, SentBatches):
            function, found = execution.of_groups(stream.source.element_spec), 0
            try:
                found, *arguments = stream.source.take(numbers, min(len(numbers), self._options.local_steps))
            finally:
                self._numbers.take_back([numbers[found:]])
            numbers = numbers[:found]
            seconds = seconds if self._by_number else math.inf
        else:
            function, arguments = execution.of(stream.maker), [stream.source]
        token = self._tokens.issue(numbers.start, len(numbers))
        try:
            limit = tf.constant(seconds, tf.float64)
            remote = self._pool.schedule(function, (*arguments, token.tensor(), limit))
        except BaseException:  # as an interrupt, when it was scheduled and this process does not know of it
            with contextlib.suppress(tf.errors.OpError):
                self._tokens.revoke([token])
            raise
        self._scheduled.append((token, remote))
        return len(numbers)

    @property
    def has_gaps(self) -> bool:
        """See `Dispatcher`."""
        return self._numbers.has_gaps

    @property
    def unused_batches(self) -> int:
        """See `Dispatcher`."""
        return self._sent.kept if self._sent is not None else 0

    def next_result(self) -> ExecutionResult:
        """See `Dispatcher`."""
        place = None if self._abandoned else self._first_ended()
        if place is None:
            self._abandoned -= 1
            result = ExecutionResult(0, None, 0.0)
        else:
            result = self._fetch(*self._scheduled[place])
            del self._scheduled[place]  # not before: an error leaves it for `cancel`
        if self._lost_steps and not (self._scheduled or self._abandoned):
            self._updates.settle()
            self._updates.correct_others()
            unused = self._tokens.settle()
            if self._by_number:
                self._numbers.take_back(unused)
            elif self._sent is None:  # a worker's iterator goes on, whatever became of what it has yielded
                self._numbers = BatchNumbers(self.global_step)
            if self._sent is not None:
                self._sent.forget_all_but(self._numbers.is_unused)
            self._lost_steps = False
        return result

    def _fetch(self, token: Token, remote) -> ExecutionResult:
        fetched = self._pool.fetch(remote)
        if fetched is None:
            return self._lost(token, ExecutionResult(token.steps, None, 0.0))
        *sums, (granted, done, seconds, count) = fetched
        result = ExecutionResult(int(done), sums, float(seconds), given_back=token.steps - int(done))
        if not granted:
            return self._lost(token, ExecutionResult(0, None, 0.0))
        self._tokens.give_back(token, int(count), result.steps)
        used = range(token.first, token.first + result.steps)
        self._numbers.take_back([range(used.stop, token.first + token.steps)])
        if self._sent is not None:
            self._sent.forget(used)
        self._timeout.observe(result.steps, result.seconds)
        return result

    def _lost(self, token: Token, result: ExecutionResult) -> ExecutionResult:
        """Revokes the token of an execution that may have applied some of its steps, and returns its result."""
        self._lost_steps = True
        self._tokens.revoke([token])  # whoever was taken for dead may be at it
        return result

    def _first_ended(self) -> int | None:
        """Waits for an execution; returns its place. None if those that are left are held up while a worker is idle.

        Then their tokens are revoked: of what their workers are still to make nothing is applied. They do not hear of
        that, which would be another message in each step.
        """
        remotes, tokens = [remote for _, remote in self._scheduled], [token for token, _ in self._scheduled]
        limit = self._timeout.next(max(token.steps for token in tokens))
        while True:
            # Whether a worker is idle changes while this waits.
            idle = self._updates.in_one_call and self._pool.has_idle_worker()
            place = self._pool.first_ended(remotes, limit if idle else _LOOK_SECONDS)
            if place is not None:
                return place
            if idle and self._pool.has_idle_worker():
                break
        _log.info("workers that are slow or stopped hold up executions (%d), which others are to make", len(remotes))
        self._tokens.revoke(tokens)
        self._pool.abandon(remotes)
        self._abandoned, self._lost_steps = len(remotes), True
        self._scheduled.clear()
        return None

    def cancel(self) -> None:
        """Ends executions that an error has left behind; what they have applied by then counts.

        Raises:
          TrainingError: workers have not ended them in 90 s. The next call tries again.
        """
        if self._scheduled or self._abandoned or self._lost_steps:
            try:
                self._tokens.revoke([token for token, _ in self._scheduled])
            finally:
                self._pool.cancel()
            self._updates.abandon()
            self._scheduled.clear()
            self._abandoned, self._lost_steps = 0, False

    def evaluate(
        self, step: TrainStep, data: FiniteDataAdapter, *, one_by_one: bool = False
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """See `Dispatcher`."""
        return self._passes.evaluate(step, data, one_by_one=one_by_one)

    def predict(self, step: PredictStep, data: FiniteDataAdapter) -> Iterator[Any]:
        """See `Dispatcher`."""
        return self._passes.predict(step, data)


@dataclass(frozen=True)
class _Stream:
    """Batches for the workers.

    Attributes:
      source: an iterator on each worker; or tensors there of which batches are made; or `SentBatches`.
      maker: makes batches of tensors.
    """

    source: Any
    maker: BatchMaker | None
