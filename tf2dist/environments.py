"""Where a Cluster comes from: the environment variable TF_CONFIG, or host flags. Imports no TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tf2dist.cluster import Cluster, ClusterError, Task


def from_environment(environ: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster that TF_CONFIG describes; None without it, or when it is empty.

    Raises:
      ClusterError: when it describes a cluster that cannot be.
    """
    text = environ.get("TF_CONFIG", "").strip()
    return Cluster.from_tf_config(text) if text and text != "{}" else None


def from_hosts(
    ps_hosts: list[str], worker_hosts: list[str], job_name: str | None, task_index: int | None
) -> Cluster | None:
    """The cluster of TensorFlow 1's start-up flags; None when none was given. Worker 0 also coordinates.

    Args:
      ps_hosts, worker_hosts: addresses "host:port" in the order of their indices.
      job_name: "ps" or "worker": which of them this process is; or "evaluator", which has no address,
      task_index: and which one of the job; 0 if not given and the job has one task only.

    Raises:
      ClusterError: when one flag is missing that another one needs.
    """
    if not (ps_hosts or worker_hosts):
        if job_name or task_index is not None:
            found = f"--job_name={job_name}" if job_name else f"--task_index={task_index}"
            raise ClusterError(f"{found} is given without --worker_hosts (and --ps_hosts, under ps); it needs them")
        return None
    if not worker_hosts:
        raise ClusterError(f"--ps_hosts={','.join(ps_hosts)} is given without --worker_hosts; a job needs both")
    hosts = {"ps": ps_hosts, "worker": worker_hosts} if ps_hosts else {"worker": worker_hosts}
    if not job_name:
        raise ClusterError(f"the host flags need --job_name={'|'.join(hosts)} and --task_index: which task is this?")
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
