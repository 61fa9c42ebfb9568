"""Functions that a `ClusterCoordinator` has scheduled: which of them is over first, and how all are ended before."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl


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
    servers have begun by a `RemoteCall` they end in their own time.
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
