"""Roles: what each process of a job does, and which task leads, from the strategy's name and the cluster."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from tf2dist.cluster.spec import Cluster, ClusterError, Task


class Role(enum.Enum):
    """What a process of a job does."""

    SOLO = "runs the loop, alone"
    PEER = "runs the loop in lockstep with its peers"
    COORDINATOR = "runs the loop and sends the steps to workers"
    EVALUATOR = "evaluates the checkpoints of the others"
    SERVER = "serves variables, runs the steps that it is sent, or makes elements of data"


def role_of(strategy: str, cluster: Cluster | None) -> Role:
    """Returns the role of this process under a strategy, given by name.

    Raises:
      ClusterError: the cluster does not fit the strategy.
    """
    if cluster is not None and cluster.task.job == "evaluator":
        return Role.EVALUATOR
    if strategy not in ("ps", "multiworker"):
        tasks = [] if cluster is None else [task for task in cluster.tasks if task.job != "data_worker"]
        if len(tasks) > 1:
            raise ClusterError(
                f"strategy {strategy} runs in one process, but the cluster has {len(tasks)} tasks; "
                "ps and multiworker run on a cluster"
            )
        return Role.SERVER if cluster is not None and cluster.task not in tasks else Role.SOLO
    if cluster is None:
        raise ClusterError(
            f"strategy {strategy} needs a cluster, and there is neither TF_CONFIG nor host flags; start one here with "
            f"python -m tf2dist launch local {'--ps=1 ' if strategy == 'ps' else ''}--workers=2 -- YOUR_SCRIPT"
        )
    if strategy == "multiworker":
        if cluster.count("data_worker"):
            raise ClusterError(
                f"strategy multiworker has no data workers, but the cluster has {cluster.count('data_worker')}: each "
                "peer would get other elements of their data, and peers cut the same global batch; ps and the "
                "strategies of one process can have them, and without them a function of tf.distribute.InputContext "
                "reads in each peer"
            )
        if cluster.count("ps"):
            raise ClusterError(
                f"strategy multiworker has no parameter servers, but the cluster has {cluster.count('ps')}"
            )
        return Role.PEER
    if not cluster.count("ps") or not cluster.count("worker"):
        raise ClusterError(
            f"strategy ps needs at least one ps and one worker, "
            f"found {cluster.count('ps')} and {cluster.count('worker')}"
        )
    return Role.COORDINATOR if cluster.task == leader_of(cluster) else Role.SERVER


def leader_among(tasks: Sequence[Task]) -> Task:
    """Returns the task that leads a job of these: the chief, or worker 0 without one (the topology of TensorFlow 1).

    Where jobs have other names (`AnyJobs`) it is the first task.
    """
    return next((task for task in (Task("chief", 0), Task("worker", 0)) if task in tasks), tasks[0])


def leader_of(cluster: Cluster) -> Task:
    """Returns the task that leads the cluster's job; see `leader_among`."""
    return leader_among(cluster.tasks)


def followers_of(cluster: Cluster) -> list[Task]:
    """Returns the tasks that the leader connects to: all but itself and the evaluator.

    A coordinator that is worker 0 also connects to worker 0's server, a child process of its own.
    """
    leader = leader_of(cluster)
    coordinates = cluster.count("ps") > 0
    return [t for t in cluster.tasks if t.job != "evaluator" and (t != leader or (coordinates and t.job == "worker"))]
