"""The dispatcher of a process that runs steps itself, on its replicas; several such processes run in lockstep."""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.compat.autograph import as_in_function
from tf2dist.execution.dispatcher_interface import ExecutionResult
from tf2dist.execution.metric_merges import merge_all
from tf2dist.execution.predict_step import PredictStep
from tf2dist.execution.steps_per_execution import EVALUATION_BATCHES
from tf2dist.execution.stop_agreement import StopAgreement
from tf2dist.execution.train_step_interface import TrainStep
from tf2dist.input.batch_slicing import ReplicaSlices, one_slice_an_element
from tf2dist.input.data_adapter import DataAdapter, FiniteDataAdapter
from tf2dist.runtime import collectives, devices, session


@dataclass(frozen=True)
class _Stream:
    """An iterator over this process's slices; see `DataAdapter.element_per_replica`."""

    iterator: Any
    element_per_replica: bool


class ReplicaDispatcher:
    """Runs the steps on this process's replicas, one execution at a time. A `Dispatcher`."""

    max_in_flight = 1
    workers = 1

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self._peers, rank = collectives.peers(strategy)
        replicas = strategy.num_replicas_in_sync // self._peers
        self._slices = ReplicaSlices(rank * replicas, replicas, strategy.num_replicas_in_sync)
        self._on_accelerators = devices.on_accelerators(strategy)
        self._results: deque[ExecutionResult] = deque()
        self._global_step = 0
        self._seconds = 0.0  # of the last execution
        self._agreement = StopAgreement(self._peers)
        self._evaluations: dict[TrainStep, Any] = {}
        self._prediction: Any = None

    @property
    def global_step(self) -> int:
        """See `Dispatcher`."""
        return self._global_step

    def counts_on_servers(self, step: TrainStep) -> None:
        """See `Dispatcher`."""
        return

    @property
    def asked_to_stop(self) -> bool:
        """See `Dispatcher`. Peers tell each other in executions, so a request waits for the end of the next one."""
        return self._agreement.asked_to_stop if self._peers > 1 else session.current().preemption.stops_training

    def compile(self, step: TrainStep):
        """`f(iterator, element_per_replica, n i32[], notes f32[2]) -> [*sums, notes]`; peers add up their notes."""
        return self._execution(step, step.update)

    def _execution(self, step: TrainStep, function: Callable):
        strategy = self._strategy

        @tf.function(autograph=False)
        def execution(iterator, element_per_replica: bool, n, notes):
            def one():
                element = self._next(iterator, element_per_replica)
                results = strategy.run(self._of_this_replica(function), args=(element,))
                return merge_all(
                    step.merges, list(zip(*map(strategy.experimental_local_results, results), strict=True))
                )

            sums = [*step.repeat(one, n), notes]
            return collectives.all_reduce(strategy, sums, step.merges) if self._peers > 1 else sums

        return execution

    def _next(self, iterator, element_per_replica: bool):
        """Returns the next element for the replicas of this process."""
        if element_per_replica and not (self._slices.single or self._on_accelerators):
            with as_in_function(autograph=True):  # or more than 32 are refused
                return tuple(next(iterator) for _ in range(self._slices.count))
        return next(iterator)

    def _of_this_replica(self, function: Callable):
        """Wraps `function` so that each replica calls it with its own slice of an element."""

        def call(element):
            if self._slices.single:
                return function(element)
            if self._on_accelerators:  # tf.distribute has handed each replica its own
                return function(*element)
            rank = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            return function(*element[rank - self._slices.first])

        return call

    def open_stream(self, data: DataAdapter, start: int, stop: int | None = None) -> _Stream:
        """See `Dispatcher`."""
        self._global_step = start
        batches = data.training_batches(self._tensors(data), self._slices, start, stop=stop)
        return self._open(batches, data.element_per_replica)

    def _tensors(self, data: DataAdapter):
        """Returns the tensors that this process rebuilds the stream from, the same in all peers."""

        def choose_seed() -> int:
            (seed,) = collectives.broadcast(self._strategy, [secrets.randbits(31)])
            return int(seed)

        return data.local_tensors() if self._peers == 1 else data.shared_tensors(choose_seed)

    def _open(self, dataset: tf.data.Dataset, element_per_replica: bool) -> _Stream:
        if not self._on_accelerators:
            # A replica on a CPU reads what the host has made as it is. tf.distribute's iterators would put queues
            # and threads in between.
            return _Stream(iter(dataset), element_per_replica)
        if not element_per_replica:
            dataset = one_slice_an_element(dataset, self._slices)
        iterator = iter(self._strategy.distribute_datasets_from_function(lambda context: dataset))
        return _Stream(iterator, element_per_replica)

    has_gaps = False
    unused_batches = 0

    def schedule(self, execution, stream: _Stream, steps: int, seconds: float = math.inf) -> int:
        """Runs `steps` steps, however long they take."""
        began = time.perf_counter()
        notes = self._agreement.notes(self._seconds)
        *sums, notes = execution(stream.iterator, stream.element_per_replica, tf.constant(steps), notes)
        sums, last = [t.numpy() for t in sums], self._agreement.take(notes)
        self._seconds = time.perf_counter() - began
        self._global_step += steps
        # Peers must choose the same length for the next execution, so they go by the mean of their last times.
        taken = last if self._peers > 1 else self._seconds
        self._results.append(ExecutionResult(steps, sums, taken))
        return steps

    def next_result(self) -> ExecutionResult:
        """See `Dispatcher`."""
        return self._results.popleft()

    def cancel(self) -> None:
        """Drops results; nothing is under way between two calls."""
        self._results.clear()

    def evaluate(
        self, step: TrainStep, data: FiniteDataAdapter, *, one_by_one: bool = False
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """See `Dispatcher`."""
        if step not in self._evaluations:
            self._evaluations[step] = self._execution(step, step.evaluate)
        stream = self._open(data.single_pass(self._tensors(data), self._slices), data.element_per_replica)
        left = data.steps or 0
        while left:
            n = 1 if one_by_one else min(left, EVALUATION_BATCHES)
            notes = self._agreement.notes(self._seconds)
            *sums, notes = self._evaluations[step](stream.iterator, stream.element_per_replica, tf.constant(n), notes)
            self._agreement.take(notes)
            yield n, [t.numpy() for t in sums]
            left -= n

    def predict(self, step: PredictStep, data: FiniteDataAdapter) -> Iterator[Any]:
        """See `Dispatcher`."""
        if self._prediction is None:
            self._prediction = self._prediction_execution(step)
        stream = self._open(data.single_pass(self._tensors(data), self._slices), data.element_per_replica)
        for _ in range(data.steps or 0):
            yield tf.nest.map_structure(lambda t: t.numpy(), self._prediction(stream.iterator))

    def _prediction_execution(self, step: PredictStep):
        strategy = self._strategy

        def predict(batch, slice_weight=None):
            outputs = step.predict(batch)
            if slice_weight is None:
                return outputs
            not_empty = tf.cast(slice_weight > 0, tf.int64)
            return tf.nest.map_structure(lambda t: t[: not_empty * tf.shape(t, tf.int64)[0]], outputs)

        @tf.function(reduce_retracing=True, autograph=False)
        def execution(iterator):
            outputs = strategy.run(self._of_this_replica(predict), args=(self._next(iterator, False),))
            if self._slices.single:
                return tf.nest.map_structure(lambda t: strategy.experimental_local_results(t)[0], outputs)
            if self._peers > 1:
                return tf.nest.map_structure(lambda t: collectives.gather(strategy, t), outputs)
            return tf.nest.map_structure(lambda t: tf.concat(strategy.experimental_local_results(t), 0), outputs)

        return execution
