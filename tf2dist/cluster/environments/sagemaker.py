"""Training jobs on Amazon SageMaker: SM_HOSTS and SM_CURRENT_HOST. Every host is a worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from tf2dist.cluster.spec import Cluster, ClusterError, Task

_PORT = 2222  # of every host


class SageMaker:
    """The hosts of a SageMaker job."""

    variable = "SM_HOSTS"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.notes: list[str] = []
        self._environ = environ

    def detect(self) -> bool:
        """As `Environment.detect`."""
        return bool(self._environ.get(self.variable))

    def cluster(self) -> Cluster | None:
        """As `Environment.cluster`; None on a single host."""
        text, this = self._environ[self.variable], self._environ.get("SM_CURRENT_HOST", "")
        try:
            found: object = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        names = cast("list[object]", found) if isinstance(found, list) else []
        hosts = [name for name in names if isinstance(name, str)]
        if not hosts or len(hosts) != len(names):
            raise ClusterError(f'SM_HOSTS is {text[:80]!r}; it is a list of host names, as ["algo-1", "algo-2"]')
        if this not in hosts:
            raise ClusterError(f"SM_CURRENT_HOST is {this!r}, which is none of SM_HOSTS, {', '.join(hosts)}")
        if len(hosts) == 1:
            return None
        self.notes.append(f"every host is a worker and listens at port {_PORT}")
        return Cluster({"worker": tuple(f"{host}:{_PORT}" for host in hosts)}, Task("worker", hosts.index(this)))
