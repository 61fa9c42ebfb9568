"""A `tf.distribute` strategy by its name."""

from __future__ import annotations

import functools

import tensorflow as tf

from tf2dist import devices, keras3, released
from tf2dist.cluster import Cluster
from tf2dist.names import STRATEGIES
from tf2dist.roles import Role, role_of

__all__ = ["STRATEGIES", "make_strategy"]


def make_strategy(name: str, *, replicas: int | None = None, cluster: Cluster | None = None) -> tf.distribute.Strategy:
    """Makes the strategy; must come before any other use of TensorFlow in the process.

    Args:
      name: one of STRATEGIES.
      replicas: devices to use in each process: GPUs, or virtual CPU devices where there are none. All GPUs if not
        given; without GPUs 2 for "mirrored" and "central", which exist to use several, else 1.
      cluster: for "multiworker" and "ps", with this process as a peer, or as the coordinator.

    Raises:
      ValueError: an unknown name, or devices that are not there.
      ClusterError: a cluster that does not fit the strategy.
    """
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}; strategies are {', '.join(STRATEGIES)}")
    role = role_of(name, cluster)
    if name == "one":
        return tf.distribute.OneDeviceStrategy(devices.replica_devices(replicas or 1)[0])
    if name == "mirrored":
        return _mirrored(*devices.replica_devices(replicas, default=2))
    if name == "central":
        return _central(devices.replica_devices(replicas, default=2))
    assert cluster is not None  # role_of has seen to it
    devices.use_session_options(cluster)
    if name == "multiworker":
        devices.replica_devices(replicas)
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=_resolver(cluster, member=True))
    if role is not Role.COORDINATOR:
        raise ValueError(f"{cluster.task} is a server: it has no strategy; tf2dist.serve runs it")
    devices.hide_gpus()
    released.wait_for_servers_without_the_lock()
    return tf.distribute.ParameterServerStrategy(_resolver(cluster, member=cluster.task.job == "chief"))


@functools.cache
def _mirrored(*compute: str) -> tf.distribute.Strategy:
    """One object for the same devices: a second one would number its collectives from the start again, and these
    would meet those of the first in the same runtime ("Shape mismatch in the collective instance")."""
    return tf.distribute.MirroredStrategy(compute)


def _central(compute: list[str]) -> tf.distribute.Strategy:
    """Variables in the host's memory, replicas on the devices."""
    strategy = tf.distribute.experimental.CentralStorageStrategy(compute, "/cpu:0")
    keras3.aggregate_by_default(strategy)
    return strategy


def _resolver(cluster: Cluster, *, member: bool) -> tf.distribute.cluster_resolver.ClusterResolver:
    """The cluster as TensorFlow takes it; a coordinator that is no chief connects to it from outside."""
    task = {"task_type": cluster.task.job, "task_id": cluster.task.index} if member else {}
    spec = tf.train.ClusterSpec(cluster.spec)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc", **task)
