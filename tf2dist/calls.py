"""Calls of functions on devices of this process or on remote workers, which may die or be late."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tf2dist import joining
from tf2dist.errors import ShardError, reason

_LATE = 3.0  # times the median of the calls before: a call that takes longer is late
_PATIENCE = 1.0  # seconds after which a call can be late at all
_LOOK = 1.0  # seconds between two looks at who is gone, and from a call that was lost to the next on the same worker
_TRIES = 5  # calls lost one after the other until a worker is given up; the end of another one can lose its calls too
_TEARDOWN = 10.0  # seconds that a call of this process gets to end when nobody wants its answer any more
_LOST = ("unknown device", "unable to find the relevant tensor remote_handle", "primary device is not remote")


@dataclass
class _Call:
    """A shard that has not been answered, and the devices that are at it."""

    number: int
    function: Any
    shard: Any
    began: float = 0.0
    devices: set[str] = field(default_factory=set)


def local(strategy: tf.distribute.Strategy) -> list[str]:
    """The devices of this process's replicas."""
    try:
        return list(strategy.extended.worker_devices)
    except RuntimeError:  # TensorFlow's default strategy
        return [""]


def workers(strategy: tf.distribute.ParameterServerStrategy) -> list[str]:
    """The workers that a coordinator leads; what is called there runs on a worker's first GPU, or on its CPU."""
    return [_address(index) for index in range(strategy._num_workers)]


def _address(worker: int) -> str:
    return f"/job:worker/replica:0/task:{worker}"


def answers(
    calls: Iterable[tuple[int, Any, Any]], devices: list[str], *, remote: bool = False, clock=time.monotonic
) -> Iterator[tuple[int, Any]]:
    """Yields the number and the answer, nested NumPy arrays, of each call, in the order in which they end.

    A ClusterCoordinator would cancel all calls when one fails, and does not tell which worker has which. So every
    device has a thread here, which does one call after the other.

    Args:
      calls: number, concrete function, shard; taken as devices get free.
      remote: are the devices other processes? These may be lost, and calls are given to others then.

    Raises:
      ShardError: a call failed.
      tf.errors.OpError: all devices are lost.
    """
    left, again = iter(calls), deque[_Call]()
    under_way: dict[int, _Call] = {}
    took: deque[float] = deque(maxlen=101)  # seconds
    done: queue.SimpleQueue = queue.SimpleQueue()
    given: dict[str, queue.SimpleQueue] = {device: queue.SimpleQueue() for device in devices}
    threads = [threading.Thread(target=_work, args=(*item, done), daemon=True) for item in given.items()]
    idle, resting = deque(devices), dict[str, float]()
    present, losses = set(devices), dict.fromkeys(devices, 0)

    def late() -> _Call | None:
        """The call that is late by most."""
        if not remote or not took:
            return None
        limit = max(_PATIENCE, _LATE * statistics.median(took))
        over = [call for call in under_way.values() if clock() - call.began > limit]
        return min(over, key=lambda call: call.began, default=None)

    def wanted() -> _Call | None:
        """What an idle device should do."""
        while again:
            if (call := again.popleft()).number in under_way:
                return call
        for number, function, shard in left:
            return under_way.setdefault(number, _Call(number, function, shard))
        return late()

    def lose(device: str) -> None:
        """What only this device was at must be done again."""
        for call in under_way.values():
            if device in call.devices:
                call.devices.discard(device)
                if not call.devices:
                    again.append(call)

    def leave(device: str) -> None:
        """Gives a device up."""
        present.discard(device)
        resting.pop(device, None)
        if device in idle:
            idle.remove(device)
        lose(device)

    def look() -> None:
        """Who is gone, who can go on?"""
        for task in joining.lost() if remote else ():
            if task.job == "worker":
                leave(_address(task.index))
        for device in [device for device, until in resting.items() if until <= clock()]:
            del resting[device]
            idle.append(device)

    for thread in threads:
        thread.start()
    try:
        last = tf.errors.UnavailableError(None, None, "all workers are lost")
        while True:
            look()
            if not present:
                raise last
            while idle and (call := wanted()):
                device = idle.popleft()
                call.devices.add(device)
                call.began = clock()
                given[device].put((call, call.began))
            if not under_way:
                return
            try:
                device, call, began, answer, error = done.get(timeout=_LOOK if remote else None)
            except queue.Empty:
                continue
            if error is not None and remote and _is_loss(error):
                last, losses[device] = error, losses[device] + 1
                lose(device)
                if losses[device] == _TRIES:
                    leave(device)
                elif device in present:
                    resting[device] = clock() + _LOOK
                continue
            losses[device] = 0
            if device in present:
                idle.append(device)
            if under_way.pop(call.number, None) is None:
                continue  # another device was faster
            if error is not None:
                raise ShardError(call.number, reason(error)) from error
            took.append(clock() - began)
            yield call.number, answer
    finally:
        for waiting in given.values():
            waiting.put(None)
        if not remote:  # TensorFlow must not be at work when the process ends; a worker that hangs is not waited for
            deadline = time.monotonic() + _TEARDOWN
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))


def _work(device: str, given: queue.SimpleQueue, done: queue.SimpleQueue) -> None:
    while (item := given.get()) is not None:
        call, began = item
        answer = failed = None
        try:
            with tf.device(device):
                answer = tf.nest.map_structure(lambda t: t.numpy(), call.function(call.shard))
        except Exception as error:
            failed = error
        done.put((device, call, began, answer, failed))


def _is_loss(error: Exception) -> bool:
    """Did the worker end, not the function fail?"""
    if isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)):
        return True
    return isinstance(error, tf.errors.InvalidArgumentError) and any(word in str(error).lower() for word in _LOST)
