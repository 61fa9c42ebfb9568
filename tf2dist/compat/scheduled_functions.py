"""Functions that a `ClusterCoordinator` has scheduled: which is over, which no longer matter, who has none to do."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl

from tf2dist.compat.fetched_results import fetch_without_function
from tf2dist.compat.partial_recovery import PartialRecovery, Starts, WorkerGate, WorkerPresence
from tf2dist.compat.patching import Patch

_making = threading.Lock()


def coordinator_of(
    strategy: tf.distribute.ParameterServerStrategy,
    presence: WorkerPresence | None = None,
    connected: Starts | None = None,
) -> tf.distribute.coordinator.ClusterCoordinator:
    """Returns the strategy's only `ClusterCoordinator`, of which the functions here know what it does.

    They know nothing of one that was made before: TensorFlow makes it in the first `scope()` of a strategy that is
    not `make_strategy`'s.

    Args:
      presence: by which it follows which workers are there (`PartialRecovery`). Without it, or where the coordinator
        was made before, lost workers come back as TensorFlow has them, all together.
      connected: with `presence`, the workers to which the strategy is connected, as that has told.
    """
    gate = WorkerGate(connected)
    parts: dict[str, Any] = {"_CoordinatedClosureQueue": lambda: _ObservedQueue(gate)}
    if presence:
        parts["WorkerPreemptionHandler"] = lambda server_def, cluster: PartialRecovery(
            server_def, cluster, presence, connected or {}, gate
        )
    with _making, Patch(cluster_coordinator, parts).applied():
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    if presence and isinstance(handler := coordinator._cluster.failure_handler, PartialRecovery):
        addresses = strategy._cluster_resolver.cluster_spec().as_dict()["worker"]
        handler.begin(dict(enumerate(addresses)), strategy.extended._num_gpus_per_worker)
    return coordinator


def reconnect(strategy: tf.distribute.ParameterServerStrategy) -> None:
    """Connects the strategy's coordinator anew, after parameter servers were started again.

    What those held is lost.

    Raises:
      tf.errors.OpError: a server cannot be connected to.
    """
    handler = coordinator_of(strategy)._cluster.failure_handler
    assert isinstance(handler, PartialRecovery)
    handler.reconnect()


def check_connections(strategy: tf.distribute.ParameterServerStrategy, workers: Iterable[int]) -> None:
    """Has each of these workers call every parameter server.

    A worker's connection to a server that was lost is made again after a time that grows with every attempt (gRPC's
    doc/connection-backoff.md), and until then its calls fail.

    Raises:
      tf.errors.OpError: a worker has not reached one of them.
    """

    @tf.function(autograph=False)
    def call_all(number):
        answers = []
        for server in range(strategy._num_ps):
            with tf.device(f"/job:ps/replica:0/task:{server}/device:CPU:0"):
                answers.append(number + 1)
        return tf.add_n(answers)

    for worker in workers:
        with tf.device(f"/job:worker/replica:0/task:{worker}/device:CPU:0"):
            call_all(tf.constant(0)).numpy()


class _ObservedQueue(cluster_coordinator._CoordinatedClosureQueue):
    """The queue of scheduled functions; it knows which workers are idle, and drops errors of calls that were given up.

    Results of scheduled functions are fetched as `tf2dist.compat.fetched_results` says.

    TensorFlow's own knows how many functions are under way, but not at which workers, and gives the error of each to
    whatever is scheduled next (tensorflow/python/distribute/coordinator/cluster_coordinator.py).
    """

    def __init__(self, gate: WorkerGate):
        super().__init__()
        self._gate = gate
        self.idle: set[Any] = set()  # workers
        self.interrupted: list[Any] = []  # workers whose function has ended without a result, and is run again
        self._closures: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by remote value
        self._abandoned: weakref.WeakSet = weakref.WeakSet()  # closures
        self._here = threading.local()  # what this thread's worker is at

    def put(self, closure, tag=None):
        if tag is None and (remote := closure._output_remote_value_ref()) is not None:
            self._closures[remote] = closure
            fetch_without_function(remote)
        super().put(closure, tag)

    def get(self, timeout=None, tag: Any = None):
        self._here.closure, self._here.worker = None, tag
        self._gate.leave(tag)
        self.idle.add(tag)
        try:
            while True:
                self._gate.wait_until_open(tag, lambda: not self._should_process_closures)
                closure = super().get(timeout, tag)
                if closure is None or self._gate.enter(tag):
                    break
                if closure.tag is None:
                    super().put_back(closure)
                else:  # it makes what is its own when it is used; `clear_tag_unlocked` drops that of a lost one
                    with self._queue_lock:
                        self._tagged_queue[tag].put(closure)
        finally:
            self.idle.discard(tag)
        self._here.closure = closure
        return closure

    def clear_tag_unlocked(self, tag):
        with self._queue_lock:  # upstream, it is called by the thread that takes from this queue
            super().clear_tag_unlocked(tag)

    def abandon(self, remote: RemoteValueImpl) -> None:
        self._abandoned.add(self._closures[remote])

    def put_back(self, closure):
        self._here.closure = None
        self.interrupted.append(self._here.worker)
        super().put_back(closure)

    def mark_failed(self, e):
        if self._here.closure in self._abandoned:
            self.mark_finished()
        else:
            super().mark_failed(e)


def idle_workers(coordinator: tf.distribute.coordinator.ClusterCoordinator) -> set[int]:
    """The workers that have nothing to do, those that are gone included; none if there is more to do.

    None either of a coordinator that was made without `coordinator_of`.
    """
    queue = _queue(coordinator)
    return set(queue.idle) if queue is not None and not queue._queue.qsize() else set()


def interrupted_workers(coordinator: tf.distribute.coordinator.ClusterCoordinator) -> list[int]:
    """Of each function that is run again, since its worker or the connection to it was lost, that worker; in order."""
    queue = _queue(coordinator)
    return [] if queue is None else [*queue.interrupted]


def abandon(coordinator: tf.distribute.coordinator.ClusterCoordinator, remote: RemoteValueImpl) -> None:
    """From now on an error of this scheduled function is that of no call. It runs on."""
    if (queue := _queue(coordinator)) is not None:
        queue.abandon(remote)


def _queue(coordinator) -> _ObservedQueue | None:
    queue = coordinator._cluster.closure_queue
    return queue if isinstance(queue, _ObservedQueue) else None


def has_ended(remote: RemoteValueImpl) -> bool:
    """Is the scheduled function over, however it ended, and what it returned here?

    TensorFlow's own `fetch` waits for one function only. (A function that has returned is run again if its worker dies
    before the coordinator has a copy: `Worker._process_closure` in
    tensorflow/python/distribute/coordinator/cluster_coordinator.py.)
    """
    return remote._has_fetched_to_local or remote._error is not None


def announce_end(remote: RemoteValueImpl, tell: Callable[[], None]) -> None:
    """Has `tell()` called by the worker's thread when the scheduled function is over.

    If it is over just now that may be missed, so whoever waits is to look by `has_ended` before, and now and then.
    """
    known = weakref.ref(remote)  # or the results of a function would stay until cycles are collected

    def then_tell(name: str) -> Callable:
        def call(*args):
            try:
                return getattr(RemoteValueImpl, name)(known(), *args)
            finally:
                tell()

        return call

    for name in ("get", "_set_error"):
        setattr(remote, name, then_tell(name))


def cancel_scheduled(coordinator: tf.distribute.coordinator.ClusterCoordinator, limit: float) -> int:
    """Ends all functions that are scheduled and forgets their errors; returns how many run on after `limit` seconds.

    TensorFlow does so itself when one of them has failed, but only once something else is scheduled or asked for, to
    which it then gives the error (`_CoordinatedClosureQueue` in
    tensorflow/python/distribute/coordinator/cluster_coordinator.py), and never because the program has failed. What
    servers have begun they end in their own time (`UpdateCounter`).
    """
    queue = coordinator._cluster.closure_queue
    with queue._queue_lock:
        queue._error = queue._error or tf.errors.CancelledError(None, None, "the program has failed")
        queue._cancellation_mgr.start_cancel()
        queue._no_inflight_closure_condition.wait_for(lambda: queue.inflight_closure_count == 0, limit)
        running = queue.inflight_closure_count
    if not running:
        with contextlib.suppress(Exception):  # the error that ends here
            coordinator.done()
    return running
