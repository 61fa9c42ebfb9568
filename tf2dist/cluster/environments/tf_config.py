"""TF_CONFIG as TensorFlow documents it, set by this project's launcher, by hand, and by many platforms."""

from __future__ import annotations

from typing import ClassVar

from tf2dist.cluster.environments.cluster_json import JsonEnvironment
from tf2dist.cluster.environments.vertex_ai import VertexAI


class TFConfig(JsonEnvironment):
    """TensorFlow's own description of a job."""

    variable = "TF_CONFIG"
    job_names: ClassVar = VertexAI.job_names  # which also sets this variable
