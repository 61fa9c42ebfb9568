"""Makes a `tf.distribute` strategy from its name."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import functools

import tensorflow as tf

from tf2dist.cluster.roles import Role, role_of
from tf2dist.cluster.spec import Cluster
from tf2dist.cluster.strategies import STRATEGIES
from tf2dist.compat.central_storage import aggregate_by_default
from tf2dist.compat.eager_operations import run_operations_without_functions
from tf2dist.compat.fetched_results import fetch_without_functions
from tf2dist.compat.gil_released_calls import release_gil_in_remote_calls
from tf2dist.compat.own_executors import use_own_executors
from tf2dist.compat.scheduled_functions import observe_scheduling
from tf2dist.compat.strategies import mirrored
from tf2dist.runtime import devices, session_options

__all__ = ["STRATEGIES", "make_strategy"]


def make_strategy(name: str, *, replicas: int | None = None, cluster: Cluster | None = None) -> tf.distribute.Strategy:
    """Makes the strategy; must come before any other use of TensorFlow in the process.

    Args:
      name: one of STRATEGIES.
      replicas: devices to use in each process: GPUs, or virtual CPU devices where there are none. All GPUs if not
        given; without GPUs 2 for "mirrored" and "central", which exist to use several, else 1.
      cluster: for "multiworker" and "ps", with this process as a peer, or as the coordinator.

    Raises:
      ValueError: the name is unknown, or devices are missing.
      ClusterError: the cluster does not fit the strategy.
    """
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}; strategies are {', '.join(STRATEGIES)}")
    role = role_of(name, cluster)
    if name == "one":
        return tf.distribute.OneDeviceStrategy(devices.replica_devices(replicas or 1)[0])
    if name == "mirrored":
        return _mirrored(*devices.replica_devices(replicas, default=devices.CPU_REPLICAS[name]))
    if name == "central":
        return _central(devices.replica_devices(replicas, default=devices.CPU_REPLICAS[name]))
    assert cluster is not None  # role_of has seen to it
    session_options.use(cluster)
    if name == "multiworker":
        devices.replica_devices(replicas)
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=_resolver(cluster, member=True))
    if role is not Role.COORDINATOR:
        raise ValueError(f"{cluster.task} is a server: it has no strategy; tf2dist.serve runs it")
    devices.hide_gpus()
    release_gil_in_remote_calls()
    use_own_executors()
    run_operations_without_functions()
    observe_scheduling()
    fetch_without_functions()
    return tf.distribute.ParameterServerStrategy(_resolver(cluster, member=cluster.task.job == "chief"))


@functools.cache
def _mirrored(*compute: str) -> tf.distribute.Strategy:
    """Returns one strategy object for the same devices."""
    return mirrored(compute)


def _central(compute: list[str]) -> tf.distribute.Strategy:
    """Returns a strategy with variables in the host's memory and replicas on the devices."""
    strategy = tf.distribute.experimental.CentralStorageStrategy(compute, "/cpu:0")
    aggregate_by_default(strategy)
    return strategy


def _resolver(cluster: Cluster, *, member: bool) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns TensorFlow's resolver of the cluster; a coordinator that is no chief is no member of it."""
    task = {"task_type": cluster.task.job, "task_id": cluster.task.index} if member else {}
    spec = tf.train.ClusterSpec(cluster.spec)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc", **task)
