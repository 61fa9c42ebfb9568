"""Where a Cluster comes from: what a platform puts into the environment, or host flags. Imports no TensorFlow.

Each platform describes a job in its own words. They are read in this order, and the first that is there holds:

- `TF_CONFIG`: TensorFlow's own, and TFJob's (kubeflow.org), with `master` for `chief` as in TensorFlow 1, workers as an
  object of index to address, and indices as text.
- `CLUSTER_SPEC`: Vertex AI's, with `workerpool0` to `workerpool3`.
- `SM_HOSTS`, `SM_CURRENT_HOST`: SageMaker's. Every host is a worker.
- `SLURM_STEP_NODELIST` and the like, in a step of several tasks: each task is a worker, unless `TF2DIST_TASKS` says
  otherwise (`slurm`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from tf2dist import slurm
from tf2dist.cluster import Cluster, ClusterError, Task

_SAGEMAKER_PORT = 2222
# Of custom training on Vertex AI; pool 3 is for evaluators.
_POOLS = {"workerpool0": "chief", "workerpool1": "worker", "workerpool2": "ps", "workerpool3": "evaluator"}


@dataclass(frozen=True)
class Found:
    """What the environment says.

    Args:
      cluster: None if it says nothing, and this process is alone.
      source: the variable that it was read from, or "".
      notes: what was put differently there, in words.
    """

    cluster: Cluster | None
    source: str = ""
    notes: tuple[str, ...] = ()


def from_environment(environ: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster that the environment describes; None without one.

    Raises:
      ClusterError: when it describes a cluster that cannot be.
    """
    return find(environ).cluster


def find(environ: Mapping[str, str] = os.environ) -> Found:
    """The cluster that the environment describes, where that was found, and what had to be put differently.

    Raises:
      ClusterError: when it describes a cluster that cannot be.
    """
    for name in ("TF_CONFIG", "CLUSTER_SPEC"):
        text = environ.get(name, "").strip()
        if text and text != "{}":
            return _from_json(text, name)
    if environ.get("SM_HOSTS"):
        return _from_sagemaker(environ)
    if (cluster := slurm.from_environment(environ)) is not None:
        return Found(cluster, "SLURM_STEP_NODELIST")
    return Found(None)


def _from_json(text: str, source: str) -> Found:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("cluster"), dict):
        return Found(_parsed(text, source), source)  # it says what is wrong
    notes: list[str] = []
    cluster: dict = {}
    for name, hosts in found["cluster"].items():
        job = _job(name, notes)
        if job in cluster:
            raise ClusterError(f"{source} names {job} twice, also as {name}; each job is named once")
        if job == "evaluator":
            notes.append("the evaluator is left out of the cluster that TensorFlow sees (tensorflow#46169)")
        cluster[job] = _listed(name, hosts, source, notes)
    task = found.get("task")
    if isinstance(task, dict) and "type" in task:
        if isinstance(task.get("index"), str):
            notes.append(f"the task's index {task['index']!r} is text, and is meant as a number")
        task = {**task, "type": _job(task["type"], [])}
    return Found(_parsed(json.dumps({**found, "cluster": cluster, "task": task}), source), source, tuple(notes))


def _parsed(text: str, source: str) -> Cluster:
    try:
        return Cluster.from_tf_config(text)
    except ClusterError as error:
        raise ClusterError(str(error).replace("TF_CONFIG", source)) from None


def _job(name, notes: list[str]):
    if not isinstance(name, str):
        return name  # Cluster says what is wrong
    if name == "master":
        notes.append("'master' is called chief since TensorFlow 1.4")
        return "chief"
    if name in _POOLS:
        notes.append(f"{name} is taken for {_POOLS[name]}")
        return _POOLS[name]
    return name


def _listed(job, hosts, source: str, notes: list[str]):
    """Hosts as a list, also when they are an object of index to address."""
    if not isinstance(hosts, dict):
        return hosts
    wanted = [str(index) for index in range(len(hosts))]
    if sorted(hosts, key=str) != sorted(wanted):
        raise ClusterError(
            f"{source} gives {job} the indices {', '.join(map(str, hosts)) or 'none'}; they must go from 0 without a "
            "gap (turn off enableDynamicWorker in a TFJob)"
        )
    notes.append(f"{job} is an object of index to address, and is meant as a list")
    return [hosts[index] for index in wanted]


def _from_sagemaker(environ: Mapping[str, str]) -> Found:
    text, me = environ["SM_HOSTS"], environ.get("SM_CURRENT_HOST", "")
    try:
        hosts = json.loads(text)
    except (ValueError, RecursionError):
        hosts = None
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
        raise ClusterError(f'SM_HOSTS is {text[:80]!r}; it is a list of host names, as ["algo-1", "algo-2"]')
    if me not in hosts:
        raise ClusterError(f"SM_CURRENT_HOST is {me!r}, which is none of SM_HOSTS, {', '.join(hosts)}")
    if len(hosts) == 1:
        return Found(None)
    workers = tuple(f"{host}:{_SAGEMAKER_PORT}" for host in hosts)
    note = f"every host is a worker and listens at port {_SAGEMAKER_PORT}"
    return Found(Cluster({"worker": workers}, Task("worker", hosts.index(me))), "SM_HOSTS", (note,))


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
