"""The interface of a platform's environment."""

from __future__ import annotations

from typing import Protocol

from tf2dist.cluster.spec import Cluster


class Environment(Protocol):
    """A description of the job that a platform has given this process, in environment variables or flags.

    Attributes:
      variable: the environment variable, or flag, that names the hosts.
      notes: what `cluster` has translated, one sentence each; empty before.
    """

    variable: str
    notes: list[str]

    def detect(self) -> bool:
        """Returns whether this platform has given a description. Raises nothing."""
        ...

    def cluster(self) -> Cluster | None:
        """Returns the cluster that it describes; None if this process is alone. Only after `detect` returned True.

        Raises:
          ClusterError: it describes a cluster that cannot be; the message names the variable.
        """
        ...
