"""Executions of training steps on a worker, one `tf.function` for each way in which its batches come."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf2dist.compat.strategy_internals import as_single_replica
from tf2dist.execution.metric_merges import merge_all
from tf2dist.execution.train_step_interface import GradientStep, TrainStep
from tf2dist.input.batch_groups import group_signature, single_batches
from tf2dist.input.data_adapter import BatchMaker
from tf2dist.parameter_server import worker_metric_sums
from tf2dist.parameter_server.fencing_tokens import FencingTokens
from tf2dist.parameter_server.local_sgd import LocalSgd
from tf2dist.parameter_server.update_counter import UpdateCounter
from tf2dist.parameter_server.variable_mutex import one_worker_at_a_time
from tf2dist.parameter_server.worker_batches import IteratorBatches, NumberedBatches, WorkerBatches
from tf2dist.parameter_server.worker_pool import WorkerPool
from tf2dist.parameter_server.worker_step import WorkerStep

_UNROLLED = 4  # small steps in one turn of a loop: messages between servers and worker about a turn take as long
_SMALL_STEP = 500  # operations


class ExecutionFunctions:
    """Executions of a step, traced when they are first used.

    Args:
      pool: the workers.
      tokens: of which each execution takes one.
      updates: counts them.
      step: whose updates.
      local_steps: updates that a worker makes on a copy of the weights before it exchanges them.
    """

    def __init__(
        self,
        pool: WorkerPool,
        tokens: FencingTokens,
        updates: UpdateCounter,
        step: TrainStep,
        local_steps: int,
    ):
        self._pool, self._tokens, self._step, self._local_steps = pool, tokens, step, local_steps
        self._updates = updates
        self._run = self._make_run()
        self._known: dict[BatchMaker | None, Any] = {}
        self._of_groups: list[tuple[Any, Any]] = []  # with the spec of a batch

    def of(self, maker: BatchMaker | None) -> Any:
        """`f(argument, token i64[4], limit f64[]) -> [*sums, f64[4]]`; without a maker the argument is an iterator.

        The last result is 1 if the token was valid, the steps that were made, the seconds, and the token's count. After
        `limit` seconds no step is begun, but the first.
        """
        if maker not in self._known:

            @tf.function(autograph=False)
            def execution(argument, token, limit):
                batches = NumberedBatches(maker, argument) if maker else self._iterated(argument)
                return self._run(batches, token, limit)

            self._known[maker] = execution
        return self._known[maker]

    def of_groups(self, element_spec: Any) -> Any:
        """As `of`, `f(tensors, shapes, token, limit)`: of batches that are sent with it."""
        for known, function in self._of_groups:
            if known == element_spec:
                return function
        others = [tf.TensorSpec([4], tf.int64), tf.TensorSpec([], tf.float64)]

        @tf.function(input_signature=[*group_signature(element_spec), *others], autograph=False)
        def execution(together, shapes, token, limit):
            batches = self._iterated(iter(single_batches(together, shapes, element_spec)))
            return self._run(batches, token, limit)

        self._of_groups.append((element_spec, execution))
        return execution

    def _iterated(self, iterator: Any) -> IteratorBatches:
        return IteratorBatches(iterator, self._pool.first_replica if self._local_steps > 1 else lambda element: element)

    def _make_run(self) -> Callable[[WorkerBatches, tf.Tensor, tf.Tensor], list[tf.Tensor]]:
        """What an execution does, given its batches, its token and its limit."""
        local_steps, step = self._local_steps, self._step
        take_steps = self._take_steps(step.as_gradient_step)

        def run(batches, token, limit):
            # The loop exchanges with the servers only what it must: each tensor that goes there or comes from there,
            # and each condition that something there depends on, is a message in each turn.
            held = self._tokens.take(token)
            n, end, began = tf.cast(held.steps, tf.int32), held.first + held.steps, tf.timestamp()

            @tf.function(autograph=False)  # traced once, used several times
            def turn(ahead, number, now):
                return take_steps(batches, ahead, number, now, end, held)

            def goes_on(done):
                return (done == 0) | (tf.timestamp() - began < limit)

            def take(sums, done, ahead, now):
                more, ahead = turn(ahead, held.first + tf.cast(done, tf.int64), now)
                return worker_metric_sums.add(step, sums, more), done + now, ahead

            def take_several(sums, done, ahead):
                for _ in range(unrolled):
                    sums, done, ahead = take(sums, done, ahead, tf.constant(1))
                return sums, done, ahead

            state = worker_metric_sums.zeros(step), tf.constant(0), batches.begin(held.first)
            unrolled = _unroll_factor(turn, state[-1]) if local_steps == 1 else 1
            if unrolled > 1:
                state = tf.while_loop(
                    lambda sums, done, ahead: (done + unrolled <= n) & goes_on(done), take_several, state
                )
            sums, done, _ = tf.while_loop(
                lambda sums, done, ahead: (done < n) & goes_on(done),
                lambda sums, done, ahead: take(sums, done, ahead, tf.minimum(n - done, local_steps)),
                state,
            )
            with tf.control_dependencies(sums):
                seconds = tf.timestamp() - began
            told = [held.steps > 0, done, seconds, held.count]
            return [*sums, tf.stack([tf.cast(t, tf.float64) for t in told])]

        return run

    def _take_steps(self, step: GradientStep | None) -> Callable:
        """A function that makes updates of the servers' variables; returns their metric sums, and what is ahead."""
        if step is None:  # it applies its gradients itself
            return self._take_custom_step(self._step)
        # With local steps, up to so many on a copy of the weights.
        return LocalSgd(step, self._updates).run_round if self._local_steps > 1 else self._take_one_step(step)

    def _take_one_step(self, step: GradientStep) -> Callable:
        """As `_take_steps`, one update."""
        strategy, together = self._pool.strategy, not self._pool.slices.single  # several replicas
        own = WorkerStep(step, self._updates)

        def take(batches, ahead, number, n, end, held):
            batch, ahead = batches.take(ahead, number, end)
            update = (lambda e: step.update(*self._of_replica(e))) if together else (lambda e: own.update(e, held))
            alone = own.on_one_server and not together
            with contextlib.nullcontext() if alone else one_worker_at_a_time(step.model.optimizer):
                results = strategy.run(update, args=(batch,))
            if not together:
                return [strategy.experimental_local_results(r)[0] for r in results], ahead
            sums = merge_all(step.merges, list(zip(*map(strategy.experimental_local_results, results), strict=True)))
            with tf.control_dependencies(sums):
                self._updates.add(1)
            return sums, ahead

        return take

    def _take_custom_step(self, step: TrainStep) -> Callable:
        """As `_take_steps`, one step; what the user's own step applies, it applies to each variable alone."""
        strategy = self._pool.strategy

        def update(batch):
            with as_single_replica(strategy):  # it may update in a condition
                return step.update(batch)

        def run(batch, held):
            graph = tf.compat.v1.get_default_graph()
            begin = len(graph.get_operations())
            with contextlib.ExitStack() as stack:
                for optimizer in step.optimizers:
                    stack.enter_context(one_worker_at_a_time(optimizer))
                results = strategy.run(update, args=(batch,))
            with tf.control_dependencies(graph.get_operations()[begin:]):  # what it has updated among them
                self._updates.add(1)
                held.count_applied(1)
            return [strategy.experimental_local_results(r)[0] for r in results]

        def take(batches, ahead, number, n, end, held):
            batch, ahead = batches.take(ahead, number, end)
            # A worker that was taken for dead may be at it.
            return tf.cond(held.is_valid(), lambda: run(batch, held), step.zero_sums), ahead

        return take

    def _of_replica(self, element):
        """The slice of the replica that calls this, of what all replicas of a worker get."""
        if isinstance(element[1], tf.Tensor):  # tf.distribute's iterator has handed each its own, with its weight
            return element
        return element[tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)]


def _unroll_factor(step, ahead) -> int:
    """How many times in a row to put a step, a `tf.function`, into one turn of a loop."""
    traced = step.get_concrete_function(ahead, tf.constant(0, tf.int64), tf.constant(1))
    return _UNROLLED if len(traced.graph.get_operations()) <= _SMALL_STEP else 1
