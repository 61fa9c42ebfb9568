"""Which platform's environment describes the job: the first of them that is detected."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tf2dist.cluster.environments.environment import Environment
from tf2dist.cluster.environments.sagemaker import SageMaker
from tf2dist.cluster.environments.slurm import Slurm
from tf2dist.cluster.environments.tf_config import TFConfig
from tf2dist.cluster.environments.tfjob import TFJob
from tf2dist.cluster.environments.vertex_ai import VertexAI
from tf2dist.cluster.spec import Cluster

# The first one that is detected is used.
ENVIRONMENTS: tuple[Callable[[Mapping[str, str]], Environment], ...] = (TFJob, TFConfig, VertexAI, SageMaker, Slurm)


@dataclass(frozen=True)
class Found:
    """The description of a job that was found in the environment.

    Attributes:
      cluster: None if there is none, and this process is alone.
      source: the variable that it was read from, or "".
      notes: what had to be translated, one sentence each.
    """

    cluster: Cluster | None
    source: str = ""
    notes: tuple[str, ...] = ()


def from_environment(environ: Mapping[str, str] = os.environ) -> Cluster | None:
    """Returns the cluster that the environment describes; None without one.

    Raises:
      ClusterError: it describes a cluster that cannot be.
    """
    return find(environ).cluster


def find(environ: Mapping[str, str] = os.environ) -> Found:
    """Returns the cluster that the environment describes, where it was found, and what had to be translated.

    Raises:
      ClusterError: it describes a cluster that cannot be.
    """
    for kind in ENVIRONMENTS:
        environment = kind(environ)
        if environment.detect():
            cluster = environment.cluster()
            return Found(cluster, environment.variable if cluster else "", tuple(environment.notes))
    return Found(None)
