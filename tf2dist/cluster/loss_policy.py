"""What the loss of a task means for its job: one table, for the coordinator and the launcher alike.

| task | under parameter servers | in lockstep (multiworker) | jobs of other names (`tf2dist.connect`) |
| --- | --- | --- | --- |
| coordinator (chief, or worker 0 without one) | ends the job, whose servers save what they hold | - | ends the job |
| worker | is started again; the job goes on meanwhile | ends the job | ends the job |
| ps | is started again; a training with a Checkpoint goes on from it, else the job ends | - | ends the job |
| peer (chief or worker) | - | ends the job | - |
| data worker | is started again; the job goes on meanwhile | - | - |
| evaluator | ends the job | ends the job | ends the job |

A strategy of one process may have data workers, too: the loss of one means the same there.

Launchers start a lost worker again in its place `WORKER_RESTARTS` times unless they are told otherwise (each worker
under Slurm, all together elsewhere); after that the job goes on with the others, but on Kubernetes, where it ends. When
no worker is left, the coordinator waits `WORKERS_GRACE` seconds for one to come back, and then ends the job; so long it
waits for each data worker, without which no pass over the data ends. A job that
ends is started again from its last checkpoint where the launcher was told to (--max_restarts). Only the launcher
watches the evaluator: the leader has no connection to it.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tf2dist.cluster.roles import leader_of
from tf2dist.cluster.spec import Cluster, ClusterError, Task
from tf2dist.system import environment_variables

# The exit status of a task that ends since it has lost another one, where a launcher has asked for it: whatever order
# their ends are seen in, the lost one is the cause. Programs hardly use what lies between sysexits.h, which ends at 78,
# and the statuses of shells, which begin at 126.
LOST_ANOTHER = 93
WORKER_RESTARTS = 3  # how often a launcher starts a lost worker again, in all
WORKERS_GRACE = 60.0  # seconds that a job without any worker waits for them to come back


class OnLoss(enum.Enum):
    """What happens when a task is lost."""

    REPLACE = "the job goes on, and the task is started again in its place"
    AWAIT = "the job goes on, and the task is started again in its place, else the job ends"
    RESTORE = "the task is started again in its place, and a fit with a Checkpoint goes on from it, else the job ends"
    END = "the job ends"


def on_loss(task: Task, *, leader: Task | None, has_servers: bool) -> OnLoss:
    """Returns what the loss of `task` means.

    Args:
      task: the task that is lost.
      leader: the task that leads the job (`roles.leader_of`); None where the leader itself asks about the others.
      has_servers: whether there are parameter servers, with workers that a coordinator leads.
    """
    if task.job == "data_worker":
        return OnLoss.AWAIT
    if not has_servers or task == leader:
        return OnLoss.END
    return {"worker": OnLoss.REPLACE, "ps": OnLoss.RESTORE}.get(task.job, OnLoss.END)


def summary(tasks: Iterable[Task], *, leader: Task | None, has_servers: bool) -> str:
    """Returns the part of the table that is about these tasks, as one line; arguments as of `on_loss`."""
    names: dict[OnLoss, list[str]] = {}
    for task in tasks:
        # Without a chief a worker leads, and is not as the others are.
        kind = task.job.replace("_", " ")
        name = str(task) if task == leader else f"an {kind}" if kind == "evaluator" else f"a {kind}"
        found = names.setdefault(on_loss(task, leader=leader, has_servers=has_servers), [])
        if name not in found:
            found.append(name)
    return "; ".join(f"when {' or '.join(found)} is lost, {meaning.value}" for meaning, found in names.items())


def status_after_loss() -> int:
    """Returns the exit status of a process that ends since it has lost another task."""
    return LOST_ANOTHER if os.environ.get(environment_variables.LOSS_STATUS) == str(LOST_ANOTHER) else 1


@dataclass(frozen=True)
class LossPolicy:
    """What the losses of a job's tasks mean to the task that leads it.

    Attributes:
      has_servers: whether there are parameter servers, with workers that this task leads.
      workers: all workers of the job.
      workers_grace: seconds that the job waits for its workers when none is left.
      irreplaceable: a worker that cannot come back without the coordinator: its own, where there is no chief.
      fewest_workers: with which the job begins, and down to which it lets workers go that are asked to stop; None if it
        begins with all, and stops as a whole.
    """

    has_servers: bool
    workers: frozenset[Task] = frozenset()
    workers_grace: float = WORKERS_GRACE
    irreplaceable: Task | None = None
    fewest_workers: int | None = None

    @classmethod
    def of(cls, cluster: Cluster, *, has_servers: bool, fewest_workers: int | None = None) -> LossPolicy:
        """Returns the policy of a cluster; with TF2DIST_WORKERS_GRACE in place of WORKERS_GRACE if that is set.

        Raises:
          ClusterError: the variable holds something else than seconds.
        """
        try:
            grace = environment_variables.seconds(environment_variables.WORKERS_GRACE, os.environ, WORKERS_GRACE)
        except ValueError as error:
            raise ClusterError(str(error)) from None
        workers = frozenset(task for task in cluster.tasks if task.job == "worker")
        leader = leader_of(cluster)
        own = leader if has_servers and leader in workers else None
        return cls(has_servers, workers, grace, own, fewest_workers)

    def ends_job(self, lost: Collection[Task], *, restores_servers: bool = False) -> bool:
        """Returns whether the loss of these tasks ends the job at once.

        Args:
          lost: the tasks.
          restores_servers: whether a training is under way that can go on from a checkpoint.
        """
        if self.irreplaceable in lost and self.waits_for_workers(lost):
            return True
        ending = {OnLoss.END} if restores_servers else {OnLoss.END, OnLoss.RESTORE}
        return any(on_loss(task, leader=None, has_servers=self.has_servers) in ending for task in lost)

    def is_server(self, task: Task) -> bool:
        """Returns whether the task is a parameter server."""
        return on_loss(task, leader=None, has_servers=self.has_servers) is OnLoss.RESTORE

    def is_data_worker(self, task: Task) -> bool:
        """Returns whether the task is a data worker, which has to come back."""
        return on_loss(task, leader=None, has_servers=self.has_servers) is OnLoss.AWAIT

    def lets_go(self, task: Task, lost: Collection[Task]) -> bool:
        """Returns whether this task may end alone when it is asked to stop, beside those that are lost."""
        may_go = self.workers - {self.irreplaceable}
        left = self.workers - {task, *lost}
        return self.fewest_workers is not None and task in may_go and len(left) >= self.fewest_workers

    def waits_for_workers(self, lost: Collection[Task]) -> bool:
        """Returns whether no worker is left, so that nothing is computed until they come back."""
        return self.has_servers and bool(self.workers) and self.workers <= set(lost)
