"""What a process of a job does: decided once, at the top, from the strategy's name and the cluster."""

from __future__ import annotations

import enum

from tf2dist.cluster import Cluster, ClusterError, Task


class Role(enum.Enum):
    """What a process does."""

    SOLO = "runs the loop, alone"
    PEER = "runs the loop in lockstep with its peers"
    COORDINATOR = "runs the loop and sends the steps to workers"
    EVALUATOR = "evaluates the checkpoints of the others"
    SERVER = "serves variables, or runs the steps that it is sent"


def role_of(strategy: str, cluster: Cluster | None) -> Role:
    """The role of this process under the named strategy.

    Raises:
      ClusterError: when the strategy and the cluster do not go together.
    """
    if cluster is not None and cluster.task.job == "evaluator":
        return Role.EVALUATOR
    if strategy not in ("ps", "multiworker"):
        if cluster is not None and len(cluster.tasks) > 1:
            raise ClusterError(
                f"strategy {strategy} runs in one process, but the cluster has {len(cluster.tasks)} tasks; "
                "ps and multiworker run on a cluster"
            )
        return Role.SOLO
    if cluster is None:
        raise ClusterError(
            f"strategy {strategy} needs a cluster, and there is neither TF_CONFIG nor host flags; start one here with "
            f"python -m launch local {'--ps=1 ' if strategy == 'ps' else ''}--workers=2 -- YOUR_SCRIPT"
        )
    if strategy == "multiworker":
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


def leader_of(cluster: Cluster) -> Task:
    """The task that leads the job: the chief, or worker 0 where there is none (the topology of TensorFlow 1).

    Where jobs have other names it is the first task.
    """
    return next((Task(job, 0) for job in ("chief", "worker") if cluster.count(job)), cluster.tasks[0])


def followers_of(cluster: Cluster) -> list[Task]:
    """The tasks that the leader waits for; a coordinator that is no chief has worker 0's server as its child."""
    leader = leader_of(cluster)
    coordinates = cluster.count("ps") > 0
    return [t for t in cluster.tasks if t.job != "evaluator" and (t != leader or (coordinates and t.job == "worker"))]


def serve(cluster: Cluster, limit: float | None = None) -> None:
    """Serves variables or runs steps for the job's coordinator, until the job is done.

    Args:
      cluster: with this process as a ps or a worker.
      limit: seconds to wait for the coordinator to come.

    Raises:
      PreflightError: the coordinator did not come, or was started differently.
      Gone: the coordinator died before the job was done.
    """
    from tf2dist import lifeline, preflight

    line = preflight.answer(cluster, leader_of(cluster), limit or preflight.time_limit())

    from tf2dist.quiet import import_tensorflow

    with lifeline.kept_alive([line]):  # on a slow host the import alone can take longer than the grace period
        tf = import_tensorflow()
        from tf2dist import devices

        options = devices.session_options(cluster)
        if cluster.task.job == "ps":
            options.device_count["GPU"] = 0  # a ps holds variables in the host's memory
        server = tf.distribute.Server(
            cluster.spec, job_name=cluster.task.job, task_index=cluster.task.index, protocol="grpc", config=options
        )
    line.say("ready")
    lifeline.serve_until_done(line)
    del server  # it cannot be stopped; it ends with the process
