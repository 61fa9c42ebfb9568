"""A compiled Keras 3 model, trained on any `tf.distribute` strategy, with one call.

The names below are imported when they are first used, so that `import tf2dist` costs nothing and a launcher
that only needs a `Cluster` never pays for TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf2dist import layers
    from tf2dist.checkpoint import Checkpoint
    from tf2dist.cluster import AnyJobs, Cluster, ClusterError, Task
    from tf2dist.errors import ShardError
    from tf2dist.examples import Examples
    from tf2dist.joining import connect, join
    from tf2dist.loop import evaluate, fit, predict, updates
    from tf2dist.mapreduce import map_reduce
    from tf2dist.names import STRATEGIES
    from tf2dist.parameter_server import ParameterServer
    from tf2dist.roles import Role, role_of, serve
    from tf2dist.strategy import make_strategy

_HOME = {
    "AnyJobs": "cluster",
    "Cluster": "cluster",
    "ClusterError": "cluster",
    "Task": "cluster",
    "Checkpoint": "checkpoint",
    "Examples": "examples",
    "connect": "joining",
    "join": "joining",
    "fit": "loop",
    "evaluate": "loop",
    "predict": "loop",
    "updates": "loop",
    "map_reduce": "mapreduce",
    "ShardError": "errors",
    "ParameterServer": "parameter_server",
    "Role": "roles",
    "role_of": "roles",
    "serve": "roles",
    "STRATEGIES": "names",
    "make_strategy": "strategy",
}

__all__ = [
    "STRATEGIES",
    "AnyJobs",
    "Checkpoint",
    "Cluster",
    "ClusterError",
    "Examples",
    "ParameterServer",
    "Role",
    "ShardError",
    "Task",
    "connect",
    "evaluate",
    "fit",
    "join",
    "layers",
    "make_strategy",
    "map_reduce",
    "predict",
    "role_of",
    "serve",
    "updates",
]


def __getattr__(name: str):
    """Imports the module that holds `name` (PEP 562)."""
    if name == "layers":
        return importlib.import_module("tf2dist.layers")
    if name not in _HOME:
        raise AttributeError(f"module 'tf2dist' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tf2dist.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
