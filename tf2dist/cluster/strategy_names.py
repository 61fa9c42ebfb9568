"""The names of the strategies, and the one that fits a cluster. Imports no TensorFlow: flags are checked without it."""

from __future__ import annotations

from tf2dist.cluster.spec import Cluster
from tf2dist.errors import UsageError

STRATEGIES = {
    "one": "one device",
    "mirrored": "several devices of this machine, each with its copy of the variables",
    "central": "several devices of this machine, the variables in the host's memory",
    "multiworker": "several processes in lockstep, each with its copy of the variables",
    "ps": "workers that update variables on parameter servers, each at its own pace",
}


def check_strategy(name: str, replicas: int | None = None) -> None:
    """Checks a strategy's name, and that a number of replicas means something to it.

    Raises:
      UsageError: it does not.
    """
    if name not in STRATEGIES:
        raise UsageError(f"unknown strategy {name!r}; strategies are {', '.join(STRATEGIES)}")
    if name in ("one", "ps") and replicas is not None and replicas > 1:
        raise UsageError(f"replicas={replicas} needs a strategy with several: mirrored, central or multiworker")


def default_strategy(cluster: Cluster | None) -> str:
    """Returns the strategy that fits a cluster, for commands that name none."""
    if cluster is None or len(cluster.tasks) - cluster.count("data_worker") == 1:
        return "one"
    return "ps" if cluster.count("ps") else "multiworker"
