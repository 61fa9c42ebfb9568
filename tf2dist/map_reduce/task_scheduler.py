"""Schedules function calls onto devices of this process or remote workers, some of which may die or be slow."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from tf2dist.compat.strategy_internals import LOST_TASK_ERRORS, worker_count
from tf2dist.errors import ShardError, reason
from tf2dist.runtime import session

_LATE_FACTOR = 3.0  # times the median duration of finished tasks: a task that takes longer is late
_MIN_LATE_SECONDS = 1.0  # a task is never late before this
_POLL_SECONDS = 1.0  # between two checks for lost workers, and before a worker that lost a task gets another one
_MAX_CONSECUTIVE_LOSSES = 5  # a worker is given up after these; the death of another worker can fail its tasks too
_JOIN_SECONDS = 10.0  # how long local threads may take to finish when the generator is closed
_DURATIONS = 101  # of the latest tasks, in the median
_LOSS_MESSAGES = (
    "unknown device",
    "unable to find the relevant tensor remote_handle",
    "primary device is not remote",
)


class Task(NamedTuple):
    """A call to schedule.

    Attributes:
      number: of the shard, counted from 0.
      function: a concrete function; must have no side effects, because it may run more than once.
      shard: its argument, tensors.
    """

    number: int
    function: Callable[[Any], Any]
    shard: Any


@dataclass
class _PendingTask:
    """A task without a result yet, and the devices that run it now."""

    task: Task
    started: float = 0.0
    devices: set[str] = field(default_factory=set[str])


_Start = tuple[_PendingTask, float]  # a task for a device, and when it was given to it


class _Attempt(NamedTuple):
    """One run of a task on one device: its result, nested NumPy arrays, or the exception it raised."""

    device: str
    pending: _PendingTask
    started: float
    result: Any
    error: Exception | None


def local_devices(strategy: tf.distribute.Strategy) -> list[str]:
    """Returns the devices of this process's replicas."""
    try:
        return list(strategy.extended.worker_devices)
    except RuntimeError:  # TensorFlow's default strategy
        return [""]


def worker_devices(strategy: tf.distribute.ParameterServerStrategy) -> list[str]:
    """Returns one device name a worker; TensorFlow runs a call there on the worker's first GPU, or else on its CPU."""
    return [_worker_device(index) for index in range(worker_count(strategy))]


def _worker_device(index: int) -> str:
    return f"/job:worker/replica:0/task:{index}"


class TaskScheduler:
    """Runs each task on some device and returns each result once.

    Every device has a thread that runs one task after the other. On remote workers, a task whose worker is lost is
    retried on another one, and a late task is also given to an idle worker (speculative execution): the first result
    counts. A worker that came back gets tasks again.
    `tf.distribute.coordinator.ClusterCoordinator` is not used, because it cancels all closures when one fails and does
    not tell which worker runs which.

    Args:
      devices: names of devices, as `local_devices` or `worker_devices` returns them.
      remote: whether they are in other processes, which can be lost.
    """

    def __init__(self, devices: list[str], *, remote: bool = False, clock: Callable[[], float] = time.monotonic):
        self._remote, self._clock = remote, clock
        self._retries: deque[_PendingTask] = deque()
        self._pending: dict[int, _PendingTask] = {}  # by the task's number
        self._durations: deque[float] = deque(maxlen=_DURATIONS)  # seconds
        self._attempts: queue.SimpleQueue[_Attempt] = queue.SimpleQueue()  # finished ones, from all threads
        self._inboxes: dict[str, queue.SimpleQueue[_Start | None]] = {d: queue.SimpleQueue() for d in devices}
        self._alive = set(devices)
        self._idle = deque(devices)
        self._running: set[str] = set()  # devices whose thread has a task
        self._lost: set[str] = set()  # devices whose worker was lost, and is not connected again
        self._paused: dict[str, float] = {}  # devices that have just lost a task, until when
        self._losses = dict.fromkeys(devices, 0)  # consecutive ones
        self._last_loss: Exception = tf.errors.UnavailableError(None, None, "all workers are lost")

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[int, Any]]:
        """Yields the number and the result, nested NumPy arrays, of each task, in the order in which they finish.

        Call it once. Closing the generator early leaves remote workers to finish what they run.

        Args:
          tasks: taken one by one, as devices become idle.

        Raises:
          ShardError: a task's function failed.
          tf.errors.OpError: all devices are lost.
        """
        new_tasks = iter(tasks)
        threads = [
            threading.Thread(target=_run_inbox, args=(device, inbox, self._attempts), daemon=True)
            for device, inbox in self._inboxes.items()
        ]
        for thread in threads:
            thread.start()
        progress = session.current().progress
        progress.busy_workers = self._busy_workers if self._remote else list
        try:
            while True:
                self._drop_lost_workers()
                self._take_back_workers()
                self._resume_paused_devices()
                if not self._alive and not self._lost:  # for lost workers the job waits, but not for ever
                    raise self._last_loss
                self._assign(new_tasks)
                if not self._pending:
                    return
                try:
                    attempt = self._attempts.get(timeout=_POLL_SECONDS if self._remote else None)
                except queue.Empty:
                    continue
                if self._is_first_result(attempt):
                    progress.made()
                    yield attempt.pending.task.number, attempt.result
        finally:
            progress.busy_workers = list
            self._stop(threads)

    def _busy_workers(self) -> list[str]:
        """The names of the workers that have not returned a task's result; for another thread."""
        devices = {device for pending in list(self._pending.values()) for device in list(pending.devices)}
        return [f"worker {index}" for index in sorted(int(device.rpartition(":")[2]) for device in devices)]

    def _assign(self, new_tasks: Iterator[Task]) -> None:
        """Gives tasks to idle devices."""
        while self._idle and (pending := self._next_task(new_tasks)):
            device = self._idle.popleft()
            pending.devices.add(device)
            pending.started = self._clock()
            self._running.add(device)
            self._inboxes[device].put((pending, pending.started))

    def _next_task(self, new_tasks: Iterator[Task]) -> _PendingTask | None:
        """Returns what an idle device should run: a retry, else a new task, else a late one."""
        while self._retries:
            if (pending := self._retries.popleft()).task.number in self._pending:
                return pending
        for task in new_tasks:
            return self._pending.setdefault(task.number, _PendingTask(task))
        return self._most_overdue_task()

    def _most_overdue_task(self) -> _PendingTask | None:
        """Returns the most overdue task, if any task is late."""
        if not self._remote or not self._durations:
            return None
        limit = max(_MIN_LATE_SECONDS, _LATE_FACTOR * statistics.median(self._durations))
        late = [pending for pending in self._pending.values() if self._clock() - pending.started > limit]
        return min(late, key=lambda pending: pending.started, default=None)

    def _is_first_result(self, attempt: _Attempt) -> bool:
        """Books a finished attempt; returns whether it is the first result of its task.

        Raises:
          ShardError: the task's function failed.
        """
        device, pending, error = attempt.device, attempt.pending, attempt.error
        self._running.discard(device)
        if error is not None and self._remote and _is_worker_loss(error):
            self._note_loss(device, error)
            return False
        self._losses[device] = 0
        if device in self._alive:
            self._idle.append(device)
        if self._pending.pop(pending.task.number, None) is None:
            return False  # another device was faster
        if error is not None:
            raise ShardError(pending.task.number, reason(error)) from error
        self._durations.append(self._clock() - attempt.started)
        return True

    def _note_loss(self, device: str, error: Exception) -> None:
        """Retries what a device lost; pauses the device, or gives it up if it lost too many tasks in a row."""
        self._last_loss = error
        self._losses[device] += 1
        self._retry_tasks_of(device)
        if self._losses[device] == _MAX_CONSECUTIVE_LOSSES:
            self._give_up(device)
        elif device in self._alive:
            self._paused[device] = self._clock() + _POLL_SECONDS

    def _retry_tasks_of(self, device: str) -> None:
        """Schedules again what only this device was running."""
        for pending in self._pending.values():
            if device in pending.devices:
                pending.devices.discard(device)
                if not pending.devices:
                    self._retries.append(pending)

    def _give_up(self, device: str) -> None:
        """Gives this device no more tasks."""
        self._alive.discard(device)
        self._paused.pop(device, None)
        if device in self._idle:
            self._idle.remove(device)
        self._retry_tasks_of(device)

    def _drop_lost_workers(self) -> None:
        """Gives up workers that the job's heartbeats have found dead, or that TensorFlow is not connected to yet."""
        for index in session.current().unused_workers() if self._remote else ():
            self._lost.add(_worker_device(index))
            self._give_up(_worker_device(index))

    def _take_back_workers(self) -> None:
        """Gives tasks to workers that are back, once TensorFlow is connected to them."""
        if self._lost:
            for device in self._lost - {_worker_device(index) for index in session.current().unused_workers()}:
                self._take_back(device)

    def _take_back(self, device: str) -> None:
        self._lost.discard(device)
        self._alive.add(device)
        self._losses[device] = 0
        if device not in self._running:  # what it ran when it was lost
            self._idle.append(device)

    def _resume_paused_devices(self) -> None:
        for device in [device for device, until in self._paused.items() if until <= self._clock()]:
            del self._paused[device]
            self._idle.append(device)

    def _stop(self, threads: list[threading.Thread]) -> None:
        """Ends the threads; waits for local ones, because TensorFlow must not be running when the process exits."""
        for inbox in self._inboxes.values():
            inbox.put(None)
        if self._remote:  # a worker that hangs is not waited for
            return
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _run_inbox(device: str, inbox: queue.SimpleQueue[_Start | None], attempts: queue.SimpleQueue[_Attempt]) -> None:
    """Runs the tasks of one device, in its thread, until None comes."""
    while (item := inbox.get()) is not None:
        pending, started = item
        result = failed = None
        try:
            with tf.device(device):
                output = pending.task.function(pending.task.shard)
                result = tf.nest.map_structure(lambda tensor: tensor.numpy(), output)
        except Exception as error:
            failed = error
        attempts.put(_Attempt(device, pending, started, result, failed))


def _is_worker_loss(error: Exception) -> bool:
    """Returns whether the worker died, rather than the function failed."""
    if isinstance(error, LOST_TASK_ERRORS):
        return True
    return isinstance(error, tf.errors.InvalidArgumentError) and any(m in str(error).lower() for m in _LOSS_MESSAGES)
