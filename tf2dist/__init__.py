"""A compiled Keras 3 model, trained on any `tf.distribute` strategy, with one call.

The names below are imported when they are first used, so that `import tf2dist` costs nothing and a launcher
that only needs a `Cluster` never pays for TensorFlow.
"""

# The signatures name types of TensorFlow and Keras, which ship none.
# pyright: strict, reportUnknownVariableType=false

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf2dist import data, errors, layers
    from tf2dist.cluster.roles import Role, role_of
    from tf2dist.cluster.spec import AnyJobs, Cluster, ClusterError, Task
    from tf2dist.cluster.strategy_names import STRATEGIES
    from tf2dist.data.data_service import DataService
    from tf2dist.errors import ShardError
    from tf2dist.input.array_adapter import Examples
    from tf2dist.map_reduce.map_reduce import map_reduce
    from tf2dist.parameter_server.options import ParameterServer
    from tf2dist.runtime.make_strategy import make_strategy
    from tf2dist.runtime.server import serve
    from tf2dist.runtime.session import connect, join, preempt
    from tf2dist.training.api import bind, evaluate, fit, predict, updates
    from tf2dist.training.callbacks import ExecutionCallback
    from tf2dist.training.checkpoint import Checkpoint
    from tf2dist.training.load_checkpoint import load_checkpoint
    from tf2dist.training.train_on_batch import step

_ROOMS = ("data", "errors", "layers")
_HOME = {
    "AnyJobs": "cluster.spec",
    "Cluster": "cluster.spec",
    "ClusterError": "cluster.spec",
    "Task": "cluster.spec",
    "Checkpoint": "training.checkpoint",
    "DataService": "data.data_service",
    "Examples": "input.array_adapter",
    "ExecutionCallback": "training.callbacks",
    "bind": "training.api",
    "connect": "runtime.session",
    "join": "runtime.session",
    "fit": "training.api",
    "load_checkpoint": "training.load_checkpoint",
    "evaluate": "training.api",
    "predict": "training.api",
    "preempt": "runtime.session",
    "step": "training.train_on_batch",
    "updates": "training.api",
    "map_reduce": "map_reduce.map_reduce",
    "ShardError": "errors",
    "ParameterServer": "parameter_server.options",
    "Role": "cluster.roles",
    "role_of": "cluster.roles",
    "serve": "runtime.server",
    "STRATEGIES": "cluster.strategy_names",
    "make_strategy": "runtime.make_strategy",
}

__all__ = [
    "STRATEGIES",
    "AnyJobs",
    "Checkpoint",
    "Cluster",
    "ClusterError",
    "DataService",
    "Examples",
    "ExecutionCallback",
    "ParameterServer",
    "Role",
    "ShardError",
    "Task",
    "bind",
    "connect",
    "data",
    "errors",
    "evaluate",
    "fit",
    "join",
    "layers",
    "load_checkpoint",
    "make_strategy",
    "map_reduce",
    "predict",
    "preempt",
    "role_of",
    "serve",
    "step",
    "updates",
]


def __getattr__(name: str) -> Any:
    """Imports the module that holds `name` (PEP 562)."""
    if name in _ROOMS:
        return importlib.import_module(f"tf2dist.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'tf2dist' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tf2dist.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
