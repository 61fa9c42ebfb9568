"""Which servers of a job are there, as the coordinator's monitor of its tasks knows: workers and parameter servers."""

# pyright: strict

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping

from tf2dist.cluster.reachability import answering
from tf2dist.cluster.spec import Cluster, Task
from tf2dist.cluster.task_monitor import LeaderMonitor


class MonitoredServers:
    """A `compat.partial_recovery.WorkerPresence`: workers by their indices, with how often each has been started.

    And which parameter servers were lost, for who can go on without what they held.

    Attributes:
      generation: how often parameter servers were replaced.
    """

    def __init__(self, monitor: LeaderMonitor, cluster: Cluster) -> None:
        self._monitor, self._cluster = monitor, cluster
        self.generation = 0
        self._all_parameter_servers = {task for task in cluster.tasks if task.job == "ps"}

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

    def parameter_servers_answer(self) -> bool:
        """See `WorkerPresence`. Asks them all at once."""
        addresses = {self._cluster.address(task) for task in self._cluster.tasks if task.job == "ps"}
        return self.parameter_servers().keys() == self._all_parameter_servers and answering(addresses) == addresses

    def on_change(self, callback: Callable[[], object]) -> None:
        """See `WorkerPresence`."""
        self._monitor.on_change(callback)

    def note_connected(self, workers: Mapping[int, int]) -> None:
        """See `WorkerPresence`. TensorFlow is connected to all servers, as long as there is a job."""
        servers = {task: starts for task, starts in self._monitor.present().items() if task.job != "worker"}
        self._monitor.note_connected(servers | {Task("worker", index): starts for index, starts in workers.items()})

    def parameter_servers(self) -> dict[Task, int]:
        """The parameter servers that are there now, with how often each has been started."""
        return _parameter_servers(self._monitor.present())

    def lost_since(self, known: Mapping[Task, int], limit: float) -> list[Task]:
        """Which of these parameter servers were lost since; waits up to `limit` seconds until one is."""
        found = self._monitor.wait_for_change(lambda tasks: _parameter_servers(tasks) != known, limit)
        now = _parameter_servers(found)
        return [task for task, starts in known.items() if now.get(task) != starts]

    def all_parameter_servers(self, limit: float) -> dict[Task, int] | None:
        """As `parameter_servers`, when all are there; None if one is not within `limit` seconds."""
        found = _parameter_servers(
            self._monitor.wait_for_change(
                lambda tasks: _parameter_servers(tasks).keys() == self._all_parameter_servers, limit
            )
        )
        return found if found.keys() == self._all_parameter_servers else None

    def note_restored(self) -> None:
        """Notes that parameter servers were replaced, and connected to: what was traced before is of no use."""
        self.generation += 1

    def note_kept(self, context: int, saver: int) -> None:
        """Tells the parameter servers what they hold, which one of them saves should this process be lost.

        Args:
          context: the number of TensorFlow's context that it is in; 0 where they hold nothing any more.
          saver: the index of the server that is to save it.
        """
        self._monitor.tell("ps", f"keeps {context} {saver}")

    @contextlib.contextmanager
    def restoring(self, can_restore: Callable[[], bool]) -> Generator[None]:
        """Inside, a parameter server may be lost as long as `can_restore()`: who has called this makes up for it."""
        self._monitor.restore_servers(can_restore)
        try:
            yield
        finally:
            self._monitor.restore_servers(None)


def _parameter_servers(tasks: Mapping[Task, int]) -> dict[Task, int]:
    return {task: starts for task, starts in tasks.items() if task.job == "ps"}


def _workers(tasks: Mapping[Task, int]) -> dict[int, int]:
    return {task.index: starts for task, starts in tasks.items() if task.job == "worker"}
