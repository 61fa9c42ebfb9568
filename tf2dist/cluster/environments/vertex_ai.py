"""Custom training on Vertex AI: CLUSTER_SPEC with the jobs `workerpool0` to `workerpool3`."""

from __future__ import annotations

from typing import ClassVar

from tf2dist.cluster.environments.cluster_json import JsonEnvironment

_WORKER_POOLS = {"workerpool0": "chief", "workerpool1": "worker", "workerpool2": "ps", "workerpool3": "evaluator"}


class VertexAI(JsonEnvironment):
    """The description of a job on Vertex AI, whose worker pools have fixed roles."""

    variable = "CLUSTER_SPEC"
    job_names: ClassVar = {pool: (job, f"{pool} is taken for {job}") for pool, job in _WORKER_POOLS.items()}
