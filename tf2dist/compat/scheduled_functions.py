"""Functions that a `ClusterCoordinator` has scheduled, ended before they are over."""

from __future__ import annotations

import contextlib

import tensorflow as tf


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
