"""Which workers of a job are there, as the coordinator's monitor of its tasks knows."""

# pyright: strict

from __future__ import annotations

from collections.abc import Callable, Mapping

from tf2dist.cluster.reachability import answering
from tf2dist.cluster.spec import Cluster, Task
from tf2dist.cluster.task_monitor import LeaderMonitor


class MonitoredWorkers:
    """A `compat.partial_recovery.WorkerPresence`: workers by their indices, with how often each has been started."""

    def __init__(self, monitor: LeaderMonitor, cluster: Cluster) -> None:
        self._monitor, self._cluster = monitor, cluster

    def present(self) -> dict[int, int]:
        """The workers that are there now."""
        return _workers(self._monitor.present())

    def wait_for_change(self, known: Mapping[int, int], limit: float) -> dict[int, int]:
        """See `WorkerPresence`."""
        return _workers(self._monitor.wait_for_change(lambda tasks: _workers(tasks) != known, limit))

    def answer(self, workers: Mapping[int, int]) -> dict[int, int]:
        """See `WorkerPresence`. Asks them all at once."""
        addresses = {index: self._cluster.address(Task("worker", index)) for index in workers}
        found = answering(addresses.values())
        return {index: starts for index, starts in workers.items() if addresses[index] in found}

    def on_change(self, callback: Callable[[], object]) -> None:
        """See `WorkerPresence`."""
        self._monitor.on_change(callback)

    def note_connected(self, workers: Mapping[int, int]) -> None:
        """See `WorkerPresence`. TensorFlow is connected to all servers, as long as there is a job."""
        servers = {task: starts for task, starts in self._monitor.present().items() if task.job != "worker"}
        self._monitor.note_connected(servers | {Task("worker", index): starts for index, starts in workers.items()})


def _workers(tasks: Mapping[Task, int]) -> dict[int, int]:
    return {task.index: starts for task, starts in tasks.items() if task.job == "worker"}
