"""A `ClusterCoordinator` that connects to the workers that are there, whichever others are missing.

TensorFlow's own connects to all workers of its cluster when it begins, and to lost ones only once none of them is
missing ("support partial cluster recovery" is a TODO of `WorkerPreemptionHandler` in
tensorflow/python/distribute/coordinator/cluster_coordinator.py). Its runtime can do more: a cluster's definition may
leave out tasks, and an update of it may add and remove some (`UpdateContextWithServerDef` in
tensorflow/core/common_runtime/eager/context_distributed_manager.cc).
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context, remote

from tf2dist.compat.patching import Patch

_NOTICE_SECONDS = 2.0  # for the loss of a worker to be noticed, after a call of it has failed
_LOOK_SECONDS = 0.5  # between two looks for what has changed

Starts = Mapping[int, int]  # of each worker that is there: how often it has been started


class WorkerPresence(Protocol):
    """Tells which workers of a job are there."""

    def present(self) -> Starts:
        """The workers that are there now."""
        ...

    def wait_for_change(self, known: Starts, limit: float) -> Starts:
        """Waits until the workers that are there are others than those known, or were started again.

        Returns those that are there, at the latest after `limit` seconds.
        """
        ...

    def on_change(self, callback: Callable[[], object]) -> None:
        """Has `callback` called, in any thread, whenever a worker was lost or has come."""
        ...

    def note_connected(self, workers: Starts) -> None:
        """Is told to which of them TensorFlow is connected."""
        ...


class WorkerGate:
    """Which workers a coordinator uses: their threads pass when they begin something, and wait while it does not."""

    def __init__(self, open_to: Collection[int] | None = None):
        self._open_to = None if open_to is None else set(open_to)  # None: all
        self._running: set[int] = set()
        self._changed = threading.Condition()

    def enter(self, worker: int) -> bool:
        """Notes that the worker's thread begins something; returns False, and notes nothing, if it is not used."""
        with self._changed:
            if used := self._open_to is None or worker in self._open_to:
                self._running.add(worker)
            return used

    def leave(self, worker: int) -> None:
        """Notes that the worker's thread runs nothing."""
        with self._changed:
            self._running.discard(worker)
            self._changed.notify_all()

    def wait_until_open(self, worker: int, is_over: Callable[[], bool]) -> None:
        """Waits until the worker is used, or `is_over()`."""
        with self._changed:
            while self._open_to is not None and worker not in self._open_to and not is_over():
                self._changed.wait(_LOOK_SECONDS)

    def open(self, workers: Collection[int]) -> None:
        """Has these workers used."""
        with self._changed:
            assert self._open_to is not None
            self._open_to.update(workers)
            self._changed.notify_all()

    def close(self, workers: Collection[int], limit: float) -> bool:
        """Has these workers not used any more; returns whether none of their threads runs anything within `limit`."""
        with self._changed:
            assert self._open_to is not None
            self._open_to.difference_update(workers)
            return self._changed.wait_for(lambda: self._running.isdisjoint(workers), limit)


class PartialRecovery(cluster_coordinator.WorkerPreemptionHandler):
    """Connects to workers as they come, and away from those that are lost; has each worker's thread wait for its own.

    Args:
      server_def: to which workers of it TensorFlow is connected, `presence` was told.
      cluster: the coordinator's.
      presence: says which workers are there.
      connected: to which TensorFlow is connected.
      gate: of the threads of all workers, open to those.
    """

    def __init__(self, server_def: Any, cluster: Any, presence: WorkerPresence, connected: Starts, gate: WorkerGate):
        self._presence, self._connected, self._gate = presence, dict(connected), gate
        self._seen = dict(connected)  # who was there at the last look
        self._here = threading.local()  # which worker this thread is of
        self._rounds = 0  # of looks at who is there
        self._failed: set[int] = set()  # workers whose thread waits here, after an error
        self._parked: set[int] = set()  # others that are not used
        super().__init__(server_def, cluster)
        self._worker_up_cond = _Recovery(self._cluster_update_lock, self)

    def begin(self, addresses: Mapping[int, str]) -> None:
        """Begins to follow who is there; the cluster's workers are made. `addresses` are those of all workers."""
        self._addresses = dict(addresses)
        self._park(self._addresses.keys() - self._connected.keys())
        self._presence.on_change(self._cluster_due_for_update_or_finish.set)
        self._cluster_due_for_update_or_finish.set()

    @contextlib.contextmanager
    def wait_on_failure(self, *args: Any, worker_device_name: str = "(unknown)", **kwargs: Any) -> Iterator[None]:
        """As upstream's."""
        self._here.worker = int(worker_device_name.rpartition(":")[2])
        with super().wait_on_failure(*args, worker_device_name=worker_device_name, **kwargs):
            yield

    def wait_until_recovered(self, wait: Callable[[float], object]) -> None:
        """Waits, by `wait(seconds)`, until this thread's worker is connected, or the servers are lost.

        It may be connected still: then its call has failed for another reason, and is made again.
        """
        worker, begun = self._here.worker, self._rounds
        self._failed.add(worker)
        self._gate.leave(worker)
        while self._should_preemption_thread_run and not self._error_from_recovery:
            if self._rounds > begun and self._gate.enter(worker):
                break
            wait(_LOOK_SECONDS)
        self._failed.discard(worker)

    def _preemption_handler(self) -> None:
        """As upstream's: runs in a thread of its own."""
        due = self._cluster_due_for_update_or_finish
        while True:
            due.wait()
            if not self._should_preemption_thread_run:
                return
            due.clear()
            present = self._presence.wait_for_change(self._seen, _NOTICE_SECONDS)
            lost = {worker for worker, starts in self._connected.items() if present.get(worker) != starts}
            if not self._gate.close(lost, _LOOK_SECONDS):
                due.set()  # calls of a lost worker fail soon
                continue
            new = {worker for worker, starts in present.items() if self._connected.get(worker) != starts}
            with self._cluster_update_lock:
                self._park(lost - self._failed)
                try:
                    if new:  # else TensorFlow may keep its broken connections, to close which is an error that it logs
                        self._update(present, new)
                    self._seen = dict(present)
                except Exception as error:
                    self._note_failed_update(error)
                self._rounds += 1
                self._worker_up_cond.notify_all()
            if self._seen != present:
                time.sleep(_LOOK_SECONDS)

    def _park(self, workers: set[int]) -> None:
        """Notes for workers that are not used any more that what they hold is lost."""
        for worker in workers - self._parked:
            lost = tf.errors.UnavailableError(None, None, f"/job:worker/replica:0/task:{worker} is lost")
            self._cluster.workers[worker]._on_resource_closure_failure(lost)
        self._parked.update(workers)

    def _update(self, present: Starts, new: Collection[int]) -> None:
        """Connects to the workers that are there, some of which are new."""
        here = context.context()
        server_def = copy.deepcopy(here.get_server_def())
        for job in server_def.cluster.job:
            if job.name == "worker":
                job.tasks.clear()
                job.tasks.update({worker: self._addresses[worker] for worker in present})
        here.update_server_def(server_def)
        self._connected = dict(present)
        self._presence.note_connected(present)
        for worker in self._parked.intersection(new):
            self._parked.discard(worker)
            self._cluster.workers[worker]._on_worker_recovery()
        self._gate.open(new)

    def _note_failed_update(self, error: Exception) -> None:
        self._cluster_due_for_update_or_finish.set()  # a worker was lost meanwhile
        try:
            self._validate_preemption_failure(error)
        except Exception as of_server:
            self._error_from_recovery = of_server


class _Recovery(threading.Condition):
    """The condition that upstream has the threads of lost workers wait for."""

    def __init__(self, lock: threading.Lock, handler: PartialRecovery):
        super().__init__(lock)
        self._handler = handler

    def wait(self, timeout: float | None = None) -> bool:
        self._handler.wait_until_recovered(super().wait)
        return True


@contextlib.contextmanager
def connecting_to(workers: Collection[int]) -> Iterator[None]:
    """Inside, a `ParameterServerStrategy` that is made connects to these workers of its cluster only."""
    connect = remote.connect_to_cluster

    def connect_to_some(cluster_spec, *args, **kwargs):
        jobs = cluster_spec.as_dict()
        jobs["worker"] = {worker: jobs["worker"][worker] for worker in workers}
        return connect(tf.train.ClusterSpec(jobs), *args, **kwargs)

    with Patch(remote, {"connect_to_cluster": connect_to_some}).applied():
        yield
