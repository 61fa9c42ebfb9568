"""The devices of this process: GPUs, or virtual CPU devices where there are none."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import tensorflow as tf

CPU_REPLICAS = {"mirrored": 2, "central": 2}  # virtual devices without GPUs: these strategies exist to use several


def replica_devices(replicas: int | None, default: int | None = None) -> list[str]:
    """Returns the devices for `replicas` replicas, as "/gpu:0"; makes virtual CPU devices where there is no GPU.

    Args:
      replicas: how many; None for every GPU, or `default` CPU devices.
      default: CPU devices when `replicas` is None and there is no GPU; 1 if not given.

    Raises:
      ValueError: there are fewer GPUs, or TensorFlow has made its devices already.
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
      ValueError: TensorFlow has made fewer devices already.
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
    """Hides GPUs from this process: a coordinator computes nothing, and its workers may be on the same host."""
    if tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices([], "GPU")


def on_accelerators(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the replicas, in this process or on each worker, compute on anything but CPUs."""
    try:
        devices = strategy.extended.worker_devices
    except RuntimeError:  # TensorFlow's default strategy, one replica wherever TensorFlow puts it
        return False
    return any("CPU" not in device.upper() for device in devices)
