"""Devices: GPUs where there are some, else virtual CPU devices that stand in for them."""

from __future__ import annotations

import os

import tensorflow as tf
from tensorflow.python.eager import context

from tf2dist.cluster import Cluster


def replica_devices(replicas: int | None, default: int | None = None) -> list[str]:
    """Device strings for `replicas` replicas, as "/gpu:0", making virtual CPU devices where there is no GPU.

    Args:
      replicas: how many; None for every GPU, or `default` CPU devices.
      default: CPU devices when `replicas` is None and there is no GPU; 1 if not given.

    Raises:
      ValueError: when there are fewer GPUs, or TensorFlow has made its devices already.
    """
    if replicas is not None and replicas < 1:
        raise ValueError(f"replicas must be at least 1, found {replicas}")
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        count = replicas or len(gpus)
        if count > len(gpus):
            raise ValueError(
                f"{count} replicas need {count} GPUs, and there are {len(gpus)}; CUDA_VISIBLE_DEVICES='' uses CPUs"
            )
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        return [f"/gpu:{i}" for i in range(count)]
    count = replicas or default or 1
    make_virtual_cpus(count)
    return [f"/cpu:{i}" for i in range(count)]


def make_virtual_cpus(count: int) -> None:
    """Splits the CPU into `count` logical devices; they share its cores and its memory.

    Raises:
      ValueError: when TensorFlow has made fewer devices already.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    known = tf.config.get_logical_device_configuration(cpu)
    if known is not None and len(known) >= count:
        return
    if count == 1:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError:
        raise ValueError(
            f"{count} virtual CPU devices are wanted, but TensorFlow has made {max(1, len(known or []))} already; "
            "call tf2dist.join or make_strategy before any operation"
        ) from None


def hide_gpus() -> None:
    """Keeps this process off the GPUs: a coordinator only sends steps to workers, which may be on the same host."""
    if tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices([], "GPU")


def on_accelerators(strategy: tf.distribute.Strategy) -> bool:
    """Do its replicas, in this process or on each worker, compute on anything but CPUs?"""
    try:
        devices = strategy.extended.worker_devices
    except RuntimeError:  # TensorFlow's default strategy, one replica wherever TensorFlow puts it
        return False
    return any("CPU" not in device.upper() for device in devices)


def session_options(cluster: Cluster) -> tf.compat.v1.ConfigProto:
    """How the tasks of a cluster use their cores.

    TensorFlow's threads spin for a while before they sleep. Where a host has more tasks than cores, what one of them
    spins away the others lack: a tenth of all processor time, measured.
    """
    options = tf.compat.v1.ConfigProto()
    options.experimental.disable_thread_spinning = cluster.crowd > (os.cpu_count() or 1)
    return options


def use_session_options(cluster: Cluster) -> None:
    """Makes this process, and the workers that it will connect to, use their cores so.

    `tf.config` has no setting for it, and tf.distribute takes the options of the servers that it starts, and of what
    it runs on those of others, from the process's context.
    """
    context.context()._config = session_options(cluster)
