"""The names of the strategies, and the one that fits a cluster. Imports no TensorFlow: flags are checked without it."""

from __future__ import annotations

from tf2dist.cluster.spec import Cluster

STRATEGIES = {
    "one": "one device",
    "mirrored": "several devices of this machine, each with its copy of the variables",
    "central": "several devices of this machine, the variables in the host's memory",
    "multiworker": "several processes in lockstep, each with its copy of the variables",
    "ps": "workers that update variables on parameter servers, each at its own pace",
}


def default_strategy(cluster: Cluster | None) -> str:
    """Returns the strategy that fits a cluster, for commands that name none."""
    if cluster is None or len(cluster.tasks) == 1:
        return "one"
    return "ps" if cluster.count("ps") else "multiworker"
