"""The dispatcher of asynchronous updates: each worker makes updates at its own pace."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.compat.optimizers import update_counters
from tf2dist.execution.compiled_step import CompiledStep
from tf2dist.execution.dispatcher import ExecutionResult
from tf2dist.execution.predict_step import PredictStep
from tf2dist.execution.train_step import TrainStep
from tf2dist.input.batch_slicing import one_slice_an_element
from tf2dist.input.data_adapter import DataAdapter, FiniteDataAdapter
from tf2dist.parameter_server import wide_sums
from tf2dist.parameter_server.execution_timeout import ExecutionTimeout
from tf2dist.parameter_server.fencing_tokens import FencingTokens, Token
from tf2dist.parameter_server.local_sgd import LocalSgd
from tf2dist.parameter_server.options import ParameterServer
from tf2dist.parameter_server.sharded_pass import ShardedPass
from tf2dist.parameter_server.update_counter import UpdateCounter
from tf2dist.parameter_server.variable_mutex import one_worker_at_a_time
from tf2dist.parameter_server.worker_pool import WorkerPool, this_worker
from tf2dist.parameter_server.worker_step import WorkerStep

_log = logging.getLogger("tf2dist")
_LOOK_SECONDS = 0.5  # between two looks whether a worker is idle
_EXECUTIONS_PER_WORKER = 2  # one that runs, and one more so that the worker does not wait for Python
_UNROLLED = 4  # small steps in one turn of a loop: messages between servers and worker about a turn take as long
_SMALL_STEP = 500  # operations


class AsynchronousDispatcher:
    """Schedules executions on whichever worker is free first, and returns results as they come. A `Dispatcher`.

    TensorFlow runs an execution again when its worker dies, so some of its steps would be applied twice. Each
    execution therefore takes a fencing token first. Steps that were lost with a worker are missing from the servers'
    count of what was applied; the loop schedules them again, with new tokens, when nothing else is under way.

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
            raise ValueError(
                f"local_steps={options.local_steps} needs workers with one device each, and these have "
                f"{self._slices.total}; start a worker for each device"
            )
        self.workers = self._pool.count
        self.max_in_flight = self.workers * _EXECUTIONS_PER_WORKER
        self._updates = UpdateCounter(strategy)
        self._tokens = FencingTokens(strategy, self.max_in_flight, beside=self._updates.variable)
        self._passes = ShardedPass(self._pool)
        self._scheduled: list[tuple[Token, Any]] = []  # with the remote value of each execution
        self._lost_steps = False  # since nothing was under way
        self._abandoned = 0  # executions that are not waited for, and whose result the loop has not got yet
        self._timeout = ExecutionTimeout()

    @property
    def global_step(self) -> int:
        """See `Dispatcher`."""
        return self._updates.value

    def compile(self, step: TrainStep):
        """`f(iterator, token i64[3]) -> [*sums, f64[3]]`: the steps, the seconds, and the token's count."""
        assert isinstance(step, CompiledStep)  # model_validation refuses models with steps of their own
        self._updates.follow(update_counters(step.model.optimizer))
        self._timeout = ExecutionTimeout()
        local_steps = self._options.local_steps
        take_steps = self._take_local_steps(step) if local_steps > 1 else self._take_one_step(step)

        @tf.function
        def execution(iterator, token):
            # The loop exchanges with the servers only what it must: each tensor that goes there or comes from there,
            # and each condition that something there depends on, is a message in each turn.
            steps, count, held = self._tokens.take(token)
            n, began = tf.cast(steps, tf.int32), tf.timestamp()

            @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])  # traced once, used several times
            def turn(now):
                return take_steps(iterator, now, lambda: self._tokens.is_valid(held))

            sums, done, unrolled = wide_sums.zeros(step), 0, _unroll_factor(turn) if local_steps == 1 else 1
            if unrolled > 1:
                while done + unrolled <= n:
                    for _ in range(unrolled):
                        sums, done = wide_sums.add(sums, turn(1)), done + 1
            while done < n:
                now = tf.minimum(n - done, local_steps)
                sums, done = wide_sums.add(sums, turn(now)), done + now
            with tf.control_dependencies(sums):
                seconds = tf.timestamp() - began
            return [*sums, tf.stack([tf.cast(done, tf.float64), seconds, tf.cast(count, tf.float64)])]

        return execution

    def _take_one_step(self, step: CompiledStep) -> Callable:
        """A function that makes one update on the servers' variables; returns its metric sums."""
        strategy, together = self._pool.strategy, not self._slices.single  # several replicas of a worker
        own = WorkerStep(step, self._updates)

        def take(iterator, n, is_valid):
            update = (lambda element: step.update(*element)) if together else (lambda e: own.update(e, is_valid))
            with one_worker_at_a_time(step.model.optimizer):
                results = strategy.run(update, args=(next(iterator),))
            if not together:
                return [strategy.experimental_local_results(r)[0] for r in results]
            sums = [tf.add_n(strategy.experimental_local_results(r)) for r in results]
            with tf.control_dependencies(sums):
                self._updates.add(1)
            return sums

        return take

    def _take_local_steps(self, step: CompiledStep) -> Callable:
        """As `_take_one_step`, up to `local_steps` updates on a copy of the weights."""
        local = LocalSgd(step, self._updates)
        return lambda iterator, n, is_valid: local.run_round(
            lambda: self._pool.first_replica(next(iterator)), n, is_valid
        )

    def open_stream(self, data: DataAdapter, start: int):
        """See `Dispatcher`. Of n workers, worker w reads the batches start + w, start + w + n, ..."""
        self.cancel()
        self._updates.reset(start)
        tensors = data.remote_tensors()

        def dataset():
            batches = data.training_batches(tensors, self._slices, start, this_worker(), self._pool.count)
            return batches if data.element_per_replica else one_slice_an_element(batches, self._slices)

        return self._pool.open_iterators(dataset)

    def schedule(self, execution, stream, steps: int) -> None:
        """See `Dispatcher`."""
        if not self._scheduled:
            self._updates.snapshot()
        token = self._tokens.issue(steps)
        try:
            remote = self._pool.schedule(execution, (stream, token.tensor()))
        except BaseException:  # as an interrupt, when it was scheduled and this process does not know of it
            with contextlib.suppress(tf.errors.OpError):
                self._tokens.revoke([token])
            raise
        self._scheduled.append((token, remote))

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
            self._lost_steps = False
        return result

    def _fetch(self, token: Token, remote) -> ExecutionResult:
        fetched = self._pool.fetch(remote)
        if fetched is None:
            result = ExecutionResult(token.steps, None, 0.0)
        else:
            *sums, (done, seconds, count) = fetched
            result = ExecutionResult(int(done), sums, float(seconds))
        if result.sums is None or result.steps < token.steps:
            self._lost_steps = True
            self._tokens.revoke([token])  # whoever was taken for dead may be at it
        else:
            self._tokens.give_back(token, int(count))
            self._timeout.observe(result.steps, result.seconds)
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


def _unroll_factor(step) -> int:
    """How many times in a row to put a step, a traced `tf.function`, into one turn of a loop."""
    small = len(step.get_concrete_function().graph.get_operations()) <= _SMALL_STEP
    return _UNROLLED if small else 1
