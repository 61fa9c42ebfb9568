"""Makes a `tf.distribute` strategy from its name."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import tensorflow as tf

from tf2dist.cluster import rendezvous
from tf2dist.cluster.heartbeat import GRACE
from tf2dist.cluster.roles import Role, role_of
from tf2dist.cluster.spec import Cluster
from tf2dist.cluster.strategy_names import STRATEGIES, check_strategy
from tf2dist.compat.autograph_temporary_files import remove_files_at_once
from tf2dist.compat.cancellation_per_thread import cancel_by_own_manager
from tf2dist.compat.central_storage import aggregate_by_default
from tf2dist.compat.eager_operations import run_operations_without_functions
from tf2dist.compat.executor_per_thread import use_own_executors
from tf2dist.compat.gil_released_calls import release_gil_in_remote_calls
from tf2dist.compat.multiworker_strategy import multi_worker_mirrored
from tf2dist.compat.partial_recovery import WorkerPresence, connecting_to
from tf2dist.compat.scheduled_functions import coordinator_of
from tf2dist.compat.server_placement import place_by_bytes
from tf2dist.compat.strategy_internals import mirrored
from tf2dist.errors import UsageError
from tf2dist.runtime import choose_all_reduce, devices, tensorflow_config_proto
from tf2dist.system import environment_variables

__all__ = ["STRATEGIES", "make_strategy"]

# A server at 10 Gbit/s carries 600 updates a second of a model of this size; two servers had 150 of a small one.
_ONE_SERVER_BYTES = 2 << 20


def make_strategy(
    name: str,
    *,
    replicas: int | None = None,
    cluster: Cluster | None = None,
    start_timeout: float | None = None,
    presence: WorkerPresence | None = None,
) -> tf.distribute.Strategy:
    """Makes the strategy; must come before any other use of TensorFlow in the process.

    Args:
      name: one of STRATEGIES.
      replicas: devices to use in each process, for "mirrored", "central" and "multiworker": GPUs, or virtual CPU
        devices where there are none. All GPUs if not given; without GPUs 2, or 1 for "multiworker". "one" uses one
        device, and under "ps" a worker uses all that it sees.
      cluster: for "multiworker" and "ps", with this process as a peer, or as the coordinator.
      start_timeout: seconds that a coordinator waits for its servers; `rendezvous.start_timeout` if not given.
      presence: tells a coordinator which workers are there; without it all have to be.

    Raises:
      ValueError: the name is unknown, the strategy has no use for `replicas`, or devices are missing.
      ClusterError: the cluster does not fit the strategy.
    """
    check_strategy(name, replicas)
    role = role_of(name, cluster)
    remove_files_at_once()
    if name == "one":
        return tf.distribute.OneDeviceStrategy(devices.replica_devices(replicas or 1)[0])
    if name == "mirrored":
        return _mirrored(*devices.replica_devices(replicas, default=devices.CPU_REPLICAS[name]))
    if name == "central":
        return _central(devices.replica_devices(replicas, default=devices.CPU_REPLICAS[name]))
    assert cluster is not None  # role_of has seen to it
    tensorflow_config_proto.use(cluster)
    if name == "multiworker":
        return _multiworker(cluster, devices.replica_devices(replicas))
    if role is not Role.COORDINATOR:
        raise UsageError(f"{cluster.task} is a server: it has no strategy; tf2dist.serve runs it")
    together = _one_server_bytes()
    devices.hide_gpus()
    release_gil_in_remote_calls(start_timeout or rendezvous.start_timeout())
    use_own_executors()
    cancel_by_own_manager()
    run_operations_without_functions()
    connected = presence.present() if presence else None
    while presence and not connected:  # the monitor ends a job in which there is no worker for long
        connected = presence.wait_for_change({}, 1.0)
    with contextlib.nullcontext() if connected is None else connecting_to(connected):
        strategy = tf.distribute.ParameterServerStrategy(_resolver(cluster, member=cluster.task.job == "chief"))
    if presence and connected:
        presence.note_connected(connected)
    place_by_bytes(strategy, together)
    coordinator_of(strategy, presence, connected)  # also of programs that then ask TensorFlow for the strategy's
    return strategy


def _one_server_bytes() -> int:
    try:
        return environment_variables.nbytes(environment_variables.ONE_SERVER_BYTES, os.environ, _ONE_SERVER_BYTES)
    except ValueError as error:
        raise UsageError(str(error)) from None


@functools.cache
def _mirrored(*compute: str) -> tf.distribute.Strategy:
    """Returns one strategy object for the same devices."""
    return mirrored(compute, choose_all_reduce.within_process(compute))


def _multiworker(cluster: Cluster, compute: list[str]) -> tf.distribute.Strategy:
    """Returns a strategy with these replicas in each process."""
    processes = cluster.count("worker") + cluster.count("chief")
    options = choose_all_reduce.between_processes(compute, processes)
    # Without the number of GPUs the strategy would train on the CPU: TensorFlow's resolver does not count them.
    gpus = len(devices.physical_gpus(compute))
    resolver = _resolver(cluster, member=True, num_accelerators={"GPU": gpus} if gpus else None)
    return multi_worker_mirrored(resolver, options, 2 * GRACE, cpus=0 if gpus else len(compute))  # ours says more


def _central(compute: list[str]) -> tf.distribute.Strategy:
    """Returns a strategy with variables in the host's memory and replicas on the devices."""
    strategy = tf.distribute.experimental.CentralStorageStrategy(compute, "/cpu:0")
    aggregate_by_default(strategy)
    return strategy


def _resolver(
    cluster: Cluster, *, member: bool, num_accelerators: dict[str, int] | None = None
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns TensorFlow's resolver of the cluster; a coordinator that is no chief is no member of it."""
    task: dict[str, Any] = {"task_type": cluster.task.job, "task_id": cluster.task.index} if member else {}
    task["num_accelerators"] = num_accelerators  # of this task
    spec = tf.train.ClusterSpec(cluster.spec)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc", **task)
