"""The start-up flags of TensorFlow 1: --ps_hosts, --worker_hosts, --job_name and --task_index."""

from __future__ import annotations

from tf2dist.cluster.environments.environment import Environment
from tf2dist.cluster.spec import Cluster, ClusterError, Task


class HostFlags:
    """A cluster as the flags of each process describe it. An `Environment`. Worker 0 also coordinates.

    Args:
      ps_hosts, worker_hosts: addresses "host:port" in the order of their indices.
      job_name: the job of this process: "ps", "worker", or "evaluator", which has no address.
      task_index: its index in the job; 0 if not given and the job has one task only.
    """

    variable = "--worker_hosts"

    def __init__(self, ps_hosts: list[str], worker_hosts: list[str], job_name: str | None, task_index: int | None):
        self.notes: list[str] = []
        self._ps_hosts, self._worker_hosts = ps_hosts, worker_hosts
        self._job_name, self._task_index = job_name, task_index

    def detect(self) -> bool:
        """See `Environment`: whether any of the flags was given."""
        return bool(self._ps_hosts or self._worker_hosts or self._job_name) or self._task_index is not None

    def cluster(self) -> Cluster:
        """See `Environment`.

        Raises:
          ClusterError: when one flag is missing that another one needs.
        """
        job_name, task_index = self._job_name, self._task_index
        if not (self._ps_hosts or self._worker_hosts):
            found = f"--job_name={job_name}" if job_name else f"--task_index={task_index}"
            raise ClusterError(f"{found} is given without --worker_hosts (and --ps_hosts, under ps); it needs them")
        if not self._worker_hosts:
            raise ClusterError(
                f"--ps_hosts={','.join(self._ps_hosts)} is given without --worker_hosts; a job needs both"
            )
        workers = {"worker": self._worker_hosts}
        hosts = {"ps": self._ps_hosts, **workers} if self._ps_hosts else workers
        if not job_name:
            raise ClusterError(
                f"the host flags need --job_name={'|'.join(hosts)} and --task_index: which task is this?"
            )
        if job_name == "evaluator":
            task_index = task_index or 0
        elif job_name not in hosts:
            raise ClusterError(f"unknown --job_name={job_name}; this job has {', '.join(hosts)}")
        if task_index is None:
            if len(hosts[job_name]) > 1:
                raise ClusterError(
                    f"--job_name={job_name} has {len(hosts[job_name])} tasks: which --task_index is this one?"
                )
            task_index = 0
        return Cluster({job: tuple(found) for job, found in hosts.items()}, Task(job_name, task_index))


def from_hosts(
    ps_hosts: list[str], worker_hosts: list[str], job_name: str | None, task_index: int | None
) -> Cluster | None:
    """Returns the cluster of these flags, as of `HostFlags`; None when none was given."""
    flags: Environment = HostFlags(ps_hosts, worker_hosts, job_name, task_index)
    return flags.cluster() if flags.detect() else None
