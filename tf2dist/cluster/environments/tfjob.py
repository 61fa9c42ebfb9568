"""TFJob of Kubeflow (kubeflow.org): TF_CONFIG in a dialect of its own."""

from __future__ import annotations

from typing import ClassVar

from tf2dist.cluster.environments.cluster_json import JsonEnvironment, jobs_of
from tf2dist.cluster.environments.vertex_ai import VertexAI


class TFJob(JsonEnvironment):
    """TF_CONFIG with `master` for `chief` as in TensorFlow 1, or with hosts as an object of index to address."""

    variable = "TF_CONFIG"
    job_names: ClassVar = {"master": ("chief", "'master' is called chief since TensorFlow 1.4"), **VertexAI.job_names}

    def detect(self) -> bool:
        """As `Environment.detect`."""
        jobs = jobs_of(self._text) or {}
        return "master" in jobs or any(isinstance(hosts, dict) for hosts in jobs.values())
