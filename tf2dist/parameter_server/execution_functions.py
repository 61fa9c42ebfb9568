"""Executions of training steps on a worker, one `tf.function` for each way in which its batches come."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf2dist.compat.inlined_graphs import InlinedGraph
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

_UNROLLED = 8  # steps in one turn of a loop, at most: messages between servers and worker about a turn take as long
_TURN = 2000  # operations of these steps, at most, as all of them take time when an execution is prepared
_TURN_BYTES = 4 << 20  # of their definitions, at most, as these are sent to each worker


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
        updates = self._make_updates(step.as_gradient_step)

        def run(batches, token, limit):
            # The loop exchanges with the servers only what it must: each tensor that goes there or comes from there,
            # and each condition that something there depends on, is a message in each turn.
            held = self._tokens.take(token)
            n, end, began = tf.cast(held.steps, tf.int32), held.first + held.steps, tf.timestamp()

            def make(ahead, told, number, now):
                return updates.make(batches, ahead, told, number, now, end, held)

            begin = batches.begin(held.first), updates.begin()
            inlined = InlinedGraph(make, *begin, held.first, tf.constant(1))

            def goes_on(done):
                return (done == 0) | (tf.timestamp() - began < limit)

            def take(sums, done, ahead, told, now):
                more, ahead, told = inlined(ahead, told, held.first + tf.cast(done, tf.int64), now)
                return worker_metric_sums.add(step, sums, more), done + now, ahead, told

            def take_several(sums, done, ahead, told):
                for _ in range(unrolled):
                    sums, done, ahead, told = take(sums, done, ahead, told, tf.constant(1))
                return sums, done, ahead, told

            state = worker_metric_sums.zeros(step), tf.constant(0), *begin
            unrolled = min(_UNROLLED, inlined.copies(_TURN, _TURN_BYTES)) if local_steps == 1 else 1
            if unrolled > 1:
                state = tf.while_loop(
                    lambda sums, done, ahead, told: (done + unrolled <= n) & goes_on(done), take_several, state
                )
            sums, done, *_ = tf.while_loop(
                lambda sums, done, ahead, told: (done < n) & goes_on(done),
                lambda sums, done, ahead, told: take(sums, done, ahead, told, tf.minimum(n - done, local_steps)),
                state,
            )
            with tf.control_dependencies(sums):
                seconds = tf.timestamp() - began
            done_by_now = [held.steps > 0, done, seconds, held.count]
            return [*sums, tf.stack([tf.cast(t, tf.float64) for t in done_by_now])]

        return run

    def _make_updates(self, step: GradientStep | None) -> _Updates:
        if step is None:  # it applies its gradients itself
            return self._custom_step(self._step)
        if self._local_steps == 1:
            return self._one_step(step) if self._pool.slices.single else self._one_step_on_replicas(step)
        local = LocalSgd(step, self._updates)  # up to so many steps on a copy of the weights

        def make(batches, ahead, told, number, n, end, held):
            sums, ahead = local.run_round(batches, ahead, number, n, end, held)
            return sums, ahead, []

        return _Updates(list, make)

    def _one_step(self, step: GradientStep) -> _Updates:
        """One update at a time."""
        strategy, own = self._pool.strategy, WorkerStep(step, self._updates)

        def begin():
            return self._pool.first_replica(strategy.run(own.begin))

        def make(batches, ahead, told, number, n, end, held):
            batch, ahead = batches.take(ahead, number, end, told)
            with contextlib.nullcontext() if own.on_one_server else one_worker_at_a_time(step.model.optimizer):
                sums, told = self._pool.first_replica(strategy.run(lambda e: own.update(e, held, told), args=(batch,)))
            return sums, ahead, told

        return _Updates(begin, make)

    def _one_step_on_replicas(self, step: GradientStep) -> _Updates:
        """One update at a time, by a worker that has several replicas."""
        strategy = self._pool.strategy

        def make(batches, ahead, told, number, n, end, held):
            batch, ahead = batches.take(ahead, number, end, told)
            with _operations() as made, one_worker_at_a_time(step.model.optimizer):
                results = strategy.run(lambda e: step.update(*self._of_replica(e)), args=(batch,))
            sums = merge_all(step.merges, list(zip(*map(strategy.experimental_local_results, results), strict=True)))
            with tf.control_dependencies(made):
                self._updates.add(1)
                return sums, ahead, [tf.constant(True)]

        return _Updates(lambda: [tf.constant(True)], make)

    def _custom_step(self, step: TrainStep) -> _Updates:
        """One step at a time; what the user's own step applies, it applies to each variable alone."""
        strategy = self._pool.strategy

        def update(batch):
            with as_single_replica(strategy):  # it may update in a condition
                return step.update(batch)

        def run(batch, held, shapes):
            with _operations() as made, contextlib.ExitStack() as stack:
                for optimizer in step.optimizers:
                    stack.enter_context(one_worker_at_a_time(optimizer))
                results = strategy.run(update, args=(batch,))
            with _operations() as counted, tf.control_dependencies(made):
                self._updates.add(1)
                held.count_applied(1)
            with tf.control_dependencies(counted):
                return [
                    tf.ensure_shape(sum_, shape)
                    for sum_, shape in zip(self._pool.first_replica(results), shapes, strict=True)
                ]

        def make(batches, ahead, told, number, n, end, held):
            batch, ahead = batches.take(ahead, number, end, told)
            with tf.control_dependencies(told):
                valid = held.is_valid()  # a worker that was taken for dead may be at it
            # A condition, as a loop: into it TensorFlow hands what is known at the time of a call alone, as a worker's
            # lookup table (`deferred_external_captures` in while_v2.py and not in cond_v2.py, both of
            # tensorflow/python/ops).
            zeros = step.zero_sums()
            shapes = [sum_.shape for sum_ in zeros]
            sums, _ = tf.while_loop(
                lambda sums, to_do: to_do, lambda sums, to_do: (run(batch, held, shapes), False), (zeros, valid)
            )
            return sums, ahead, sums

        return _Updates(step.zero_sums, make)

    def _of_replica(self, element):
        """The slice of the replica that calls this, of what all replicas of a worker get."""
        if isinstance(element[1], tf.Tensor):  # tf.distribute's iterator has handed each its own, with its weight
            return element
        return element[tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)]


@dataclass(frozen=True)
class _Updates:
    """How an execution makes updates of the servers' variables. In its graph, on the worker.

    Attributes:
      begin: returns what the first update is told, a list of tensors.
      make: `make(batches, ahead, told, number i64[], n i32[], end i64[], held) -> (sums, ahead, told)` makes an update,
        or up to `n`, on the batches from `number` on. It returns their metric sums, what is ahead of `batches`, and
        what the next one is told, which is there when these are made.
    """

    begin: Callable[[], list[tf.Tensor]]
    make: Callable[..., tuple[list[tf.Tensor], Any, list[tf.Tensor]]]


@contextlib.contextmanager
def _operations() -> Iterator[list[tf.Operation]]:
    """Lists the operations that are made inside, once it is left. In a graph."""
    graph, made = tf.compat.v1.get_default_graph(), []
    begin = len(graph.get_operations())
    yield made
    made += graph.get_operations()[begin:]
