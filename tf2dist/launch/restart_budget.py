"""How often failed processes are started again: workers and parameter servers in their place, and whole jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

from tf2dist.cluster.loss_policy import WORKER_RESTARTS

PREEMPTIONS = 20  # how often a job that was preempted is started again: that is no failure, but must have an end
WRONG_COMMAND = 2  # the exit status of a program that was called wrongly; starting it again cannot help


@dataclass
class RestartBudget:
    """The restarts that are left.

    Attributes:
      worker: how many times a worker, or a parameter server, may still be started again in its place, all together.
      job: how many times the whole job may still be started again.
      shared: does every restart count for both?
      preemption: how many times the whole job may still be started again since it was preempted.
      has_replaced: has a worker been started again in its place?
    """

    worker: int
    job: int
    shared: bool
    preemption: int = PREEMPTIONS
    has_replaced: bool = field(default=False, init=False)

    @classmethod
    def of(cls, max_restarts: int | None) -> RestartBudget:
        """The budget at the start of a job.

        Args:
          max_restarts: restarts of workers and of the job together; None for `WORKER_RESTARTS` of workers and none
            of the job. Those after a preemption do not count, but with 0 there are none.
        """
        if max_restarts is None:
            return cls(WORKER_RESTARTS, 0, shared=False)
        return cls(max_restarts, max_restarts, shared=True, preemption=PREEMPTIONS if max_restarts else 0)

    def take_worker(self) -> bool:
        """Takes one restart of a worker from the budget; returns False if none is left."""
        if not self.worker:
            return False
        self.worker -= 1
        self.job -= self.shared
        self.has_replaced = True
        return True

    def put_back_worker(self) -> None:
        """Puts back what `take_worker` took, for a restart that was no help."""
        self.worker += 1
        self.job += self.shared

    def take_job(self) -> bool:
        """Takes one restart of the whole job from the budget; returns False if none is left."""
        if not self.job:
            return False
        self.job -= 1
        self.worker -= self.shared
        return True

    def take_preemption(self) -> bool:
        """Takes one restart of a job that was preempted from the budget; returns False if none is left."""
        if not self.preemption:
            return False
        self.preemption -= 1
        return True
