"""How workers of a parameter server job make their updates."""

from __future__ import annotations

from dataclasses import dataclass

from tf2dist.errors import UsageError


@dataclass(frozen=True)
class ParameterServer:
    """Options of `tf2dist.fit` for strategy "ps".

    Attributes:
      update: "async": each worker applies its own gradients as soon as it has them. "sync": every update is the mean
        of the gradients of `workers - backup_workers` workers on the same weights, as TensorFlow 1's
        `SyncReplicasOptimizer` made it, and a global batch is cut among that many. What layers write by themselves,
        such as the moving statistics of `BatchNormalization`, is written once an update, too: the mean of what these
        workers would write, weighted by their slices; of integers, such as seeds, what one of them would. Batches are
        normalized slice by slice, as on the replicas of other strategies.
      backup_workers: under "sync", how many of the workers an update does not wait for; what comes too late is
        dropped, and counted in the history as "dropped_gradients" (Chen et al. 2016, arXiv:1604.00981), which is not
        there without backup workers.
      local_steps: under "async", updates that a worker makes on a copy of the weights before it adds their
        difference to the servers' and fetches the weights anew (n_fetch and n_push of DistBelief, Dean et al. 2012).
        The optimizer's other variables, and the statistics of layers, are those of the worker that wrote last.

    Raises:
      ValueError: for options that contradict each other.
    """

    update: str = "async"
    backup_workers: int = 0
    local_steps: int = 1

    def __post_init__(self) -> None:
        if self.update not in ("async", "sync"):
            raise UsageError(f'update must be "async" or "sync", found {self.update!r}')
        if self.backup_workers < 0:
            raise UsageError(f"backup_workers must be at least 0, found {self.backup_workers}")
        if self.local_steps < 1:
            raise UsageError(f"local_steps must be at least 1, found {self.local_steps}")
        if self.backup_workers and self.update != "sync":
            raise UsageError(f'backup_workers={self.backup_workers} is for update="sync"; async waits for nobody')
        if self.local_steps > 1 and self.update != "async":
            raise UsageError(f'local_steps={self.local_steps} is for update="async", found update="sync"')
