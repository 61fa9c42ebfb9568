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
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context, remote

from tf2dist.compat.patching import Patch

_NOTICE_SECONDS = 2.0  # for the loss of a worker to be noticed, after a call of it has failed
_FAILURE_SECONDS = 5.0  # for the calls of a lost worker to fail
_AGAIN_SECONDS = 30.0  # between two failures of a connected worker's calls, for the connection to be made anew
_LOOK_SECONDS = 0.5  # between two looks for what has changed

_log = logging.getLogger("tf2dist")

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

    def answer(self, workers: Starts) -> Starts:
        """Those of these workers whose servers answer."""
        ...

    def parameter_servers_answer(self) -> bool:
        """Whether all parameter servers are there, and answer."""
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

    def is_open(self, worker: int) -> bool:
        """Returns whether the worker is used."""
        with self._changed:
            return self._open_to is None or worker in self._open_to

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

    def close(self, workers: set[int], limit: float) -> set[int]:
        """Has these workers not used any more, and waits up to `limit` seconds until their threads run nothing.

        Returns all workers that are not used, and whose threads run something even so.
        """
        with self._changed:
            assert self._open_to is not None
            self._open_to.difference_update(workers)
            self._changed.wait_for(lambda: self._running.isdisjoint(workers), limit)
            return self._running - self._open_to


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
        self._unlike: set[int] = set()  # workers that have other devices
        self._broken = False  # has the last update failed?
        self._logged = ""
        self._made_again: dict[int, float] = {}  # when calls of these workers have failed, though these were connected
        self._here = threading.local()  # which worker this thread is of
        self._rounds = 0  # of looks at who is there
        self._failed: set[int] = set()  # workers whose thread waits here, after an error
        self._parked: set[int] = set()  # others that are not used
        super().__init__(server_def, cluster)
        self._worker_up_cond = _Recovery(self._cluster_update_lock, self)

    def begin(self, addresses: Mapping[int, str], gpus: int) -> None:
        """Begins to follow who is there; the cluster's workers are made.

        Args:
          addresses: of all workers.
          gpus: of each worker.
        """
        self._addresses, self._gpus = dict(addresses), gpus
        self._park(self._addresses.keys() - self._connected.keys())
        self._presence.on_change(self._cluster_due_for_update_or_finish.set)
        self._cluster_due_for_update_or_finish.set()

    @contextlib.contextmanager
    def wait_on_failure(self, *args: Any, worker_device_name: str = "(unknown)", **kwargs: Any) -> Iterator[None]:
        """As upstream's."""
        worker = self._here.worker = int(worker_device_name.rpartition(":")[2])
        with super().wait_on_failure(*args, worker_device_name=worker_device_name, **kwargs):
            try:
                yield
            except tf.errors.OpError:
                if not self._gate.is_open(worker):  # whatever its call has met since then
                    raise _loss_of(worker) from None
                raise

    def reconnect(self) -> None:
        """Connects to parameter servers that were started again; workers keep what they hold.

        Raises:
          tf.errors.OpError: a server cannot be connected to.
        """
        running = self._gate.close(self._lost(self._presence.present()), _FAILURE_SECONDS)
        with self._cluster_update_lock:
            lost = self._lost(self._presence.present())
            kept = {worker: starts for worker, starts in self._connected.items() if worker not in lost}
            if not kept or self._presence.answer(kept) != kept or not self._presence.parameter_servers_answer():
                raise tf.errors.UnavailableError(None, None, "not all servers answer")
            if any(self._gate.is_open(worker) for worker in lost):
                raise tf.errors.UnavailableError(None, None, "another worker was lost meanwhile")
            self._park(lost - self._failed - running)
            self._update(kept, set())
        self._cluster_due_for_update_or_finish.set()  # those that were lost may be back

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
            try:
                is_done = self._look()
            except Exception as error:  # of a process that ends, or has no thread or socket left
                is_done = False
                self._log_once(f"cannot look for workers that have come: {' '.join(str(error).split())}")
            if not is_done:
                due.set()
                time.sleep(_LOOK_SECONDS)

    def _look(self) -> bool:
        """Looks who is there, and connects to new workers; returns whether nothing is left to be done."""
        present = self._presence.wait_for_change(self._seen, _NOTICE_SECONDS)
        lost = self._lost(present)
        self._unlike -= lost
        running = self._gate.close(lost, _FAILURE_SECONDS)
        with self._cluster_update_lock:
            unused = {worker for worker in self._addresses if not self._gate.is_open(worker)}
            self._park(unused - self._failed - running)
            failing = {worker for worker in self._failed & self._connected.keys() - lost if self._fails_again(worker)}
            new = unused & present.keys() - self._unlike
            is_done = not running
            if new or failing or self._broken:  # else TensorFlow may keep what is broken, and logs no errors of its end
                is_done &= self._connect(present, new, bool(failing) or self._broken)
            if is_done:
                self._seen = dict(present)
            self._rounds += 1
            self._worker_up_cond.notify_all()
        return is_done

    def _lost(self, present: Starts) -> set[int]:
        """Which workers TensorFlow is connected to that are not there, or were started again."""
        return {worker for worker, starts in self._connected.items() if present.get(worker) != starts}

    def _connect(self, present: Starts, new: set[int], again: bool) -> bool:
        """Connects to the workers that are there; returns whether it has, to all of them.

        Args:
          new: those of them that are new.
          again: whether the connections to the others are to be made anew, too.
        """
        # TensorFlow waits for a server that does not answer, however long.
        if not self._presence.parameter_servers_answer():
            self._log_once("parameter servers must answer before workers that have come are used")
            return False
        silent = present.keys() - self._presence.answer(present).keys()
        if silent - new:
            names = ", ".join(f"worker {worker}" for worker in sorted(silent - new))
            self._log_once(f"{names} must answer, or count as lost, before others that have come are used")
            return False
        now = new - silent
        if self._broken and now:
            now = {sorted(now)[self._rounds % len(now)]}  # it may be one of them that cannot be connected to
        wanted = {worker: starts for worker, starts in present.items() if worker not in new - now}
        if not wanted or not (now or again):
            return False
        try:
            self._update(wanted, now)
        except Exception as error:
            if not cluster_coordinator._is_worker_failure(error):  # else one was lost meanwhile
                self._log_once(f"cannot connect to the workers that are there: {' '.join(str(error).split())}")
                self._error_from_recovery = None if new else error
            return False
        return now == new

    def _log_once(self, text: str) -> None:
        if text != self._logged:
            _log.warning("tf2dist: %s", text)
        self._logged = text

    def _fails_again(self, worker: int) -> bool:
        """Returns whether a call of this worker, which is connected, has failed a short time ago, too."""
        before = self._made_again.get(worker, -math.inf)
        self._made_again[worker] = time.monotonic()
        return self._made_again[worker] - before < _AGAIN_SECONDS

    def _park(self, workers: set[int]) -> None:
        """Notes for workers that are not used any more that what they hold is lost."""
        for worker in workers - self._parked:
            self._cluster.workers[worker]._on_resource_closure_failure(_loss_of(worker))
        self._parked.update(workers)

    def _update(self, present: Starts, new: set[int]) -> None:
        """Connects to the workers that are there, some of which are new."""
        self._broken = True
        here = context.context()
        server_def = copy.deepcopy(here.get_server_def())
        for job in server_def.cluster.job:
            if job.name == "worker":
                job.tasks.clear()
                job.tasks.update({worker: self._addresses[worker] for worker in present})
        here.update_server_def(server_def)
        self._broken, self._error_from_recovery, self._logged = False, None, ""
        self._connected = dict(present)
        self._unlike |= {worker for worker in new if _gpus_of(worker) != self._gpus}
        for worker in self._unlike & new:
            _log.error(
                "tf2dist: worker %d has %d GPUs, and those before have %d; it is not used",
                worker,
                _gpus_of(worker),
                self._gpus,
            )
        used = new - self._unlike
        self._presence.note_connected({worker: n for worker, n in present.items() if worker not in self._unlike})
        for worker in self._parked & used:
            self._parked.discard(worker)
            self._cluster.workers[worker]._on_worker_recovery()
        self._gate.open(used)


def _loss_of(worker: int) -> tf.errors.UnavailableError:
    """An error in which upstream sees the loss of a worker."""
    return tf.errors.UnavailableError(None, None, f"/job:worker/replica:0/task:{worker} is lost")


def _gpus_of(worker: int) -> int:
    return sum(f"/job:worker/replica:0/task:{worker}/" in gpu.name for gpu in tf.config.list_logical_devices("GPU"))


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
