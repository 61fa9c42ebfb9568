"""Functions that a `ClusterCoordinator` has scheduled: which of them is over first, and how all are ended before."""

from __future__ import annotations

import contextlib
import threading

import tensorflow as tf
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl


def has_ended(remote: RemoteValueImpl) -> bool:
    """Is the scheduled function over, however it ended? TensorFlow's own `fetch` waits for one function only."""
    return remote._status_available_event.is_set()


def announce_end(remote: RemoteValueImpl, ends: threading.Condition) -> None:
    """Has those who wait for `ends` woken when the scheduled function is over.

    If it is over just now that may be missed, so whoever waits is to look by `has_ended` before, and now and then.
    """
    event = remote._status_available_event
    tell = event.set

    def set_and_tell() -> None:
        tell()
        with ends:
            ends.notify_all()

    event.set = set_and_tell


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
