"""The devices of this process: GPUs, or virtual CPU devices where there are none."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import tensorflow as tf

from tf2dist.compat import eager_context
from tf2dist.errors import UsageError
from tf2dist.system import environment_variables, gpus

CPU_REPLICAS = {"mirrored": 2, "central": 2}  # virtual devices without GPUs: these strategies exist to use several


def replica_devices(replicas: int | None, default: int | None = None) -> list[str]:
    """Returns the devices for `replicas` replicas, as "/gpu:0"; makes virtual CPU devices where there is no GPU.

    GPUs are those that the program has left visible, and each part of one that it has divided into logical devices.

    Args:
      replicas: how many; None for every GPU, or `default` CPU devices.
      default: CPU devices when `replicas` is None and there is no GPU; 1 if not given.

    Raises:
      ValueError: there are fewer GPUs, or TensorFlow has made fewer virtual CPU devices already.
    """
    if replicas is not None and replicas < 1:
        raise UsageError(f"replicas must be at least 1, found {replicas}")
    check_given_gpus()
    there = sum(_logical_gpus().values())
    if there:
        count = replicas or there
        if count > there:
            raise UsageError(
                f"{count} replicas need {count} GPUs, and there are {there}; CUDA_VISIBLE_DEVICES='' uses CPUs"
            )
        _limit_gpu_memory()
        return [f"/gpu:{i}" for i in range(count)]
    count = replicas or default or 1
    make_virtual_cpus(count)
    return [f"/cpu:{i}" for i in range(count)]


def check_given_gpus() -> None:
    """Raises UsageError where the launcher was asked to give this process GPUs, and TensorFlow uses fewer."""
    given = environment_variables.count(environment_variables.GPUS_GIVEN, os.environ) or 0
    found = len(tf.config.list_physical_devices("GPU")) if given else 0
    if found < given:
        raise UsageError(
            f"--gpus_per_worker={given}, and TensorFlow uses {found} of the GPUs that this process was given "
            f"({gpus.VISIBLE}={os.environ.get(gpus.VISIBLE)}); python -m tf2dist.doctor says why"
        )


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
        raise UsageError(
            f"{count} virtual CPU devices are wanted, but TensorFlow has made {max(1, len(known or []))} already; "
            "call tf2dist.join or make_strategy before any operation"
        ) from None


def hide_gpus() -> None:
    """Hides GPUs from this process: a coordinator computes nothing, and its workers may be on the same host."""
    if tf.config.get_visible_devices("GPU"):
        try:
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError:
            raise UsageError(
                "TensorFlow has taken this process's GPUs already, which its workers need; call tf2dist.join or "
                "make_strategy before any operation"
            ) from None


def physical_gpus(replicas: Sequence[str]) -> list[int]:
    """Returns the number of the GPU that each of these devices is on, or is a part of; nothing for CPUs."""
    owners = [gpu for gpu, parts in enumerate(_logical_gpus().values()) for _ in range(parts)]
    specs = [tf.DeviceSpec.from_string(replica) for replica in replicas]
    return [owners[spec.device_index] for spec in specs if spec.device_type == "GPU"]


def gpu_memory_limit() -> int | None:
    """Returns how many MiB this process may take of each GPU; None for what it needs."""
    return environment_variables.count(environment_variables.GPU_MEMORY, os.environ)


def _logical_gpus() -> dict[str, int]:
    """Into how many devices the program has divided each GPU that this process sees: one, mostly."""
    return {
        gpu.name: len(tf.config.get_logical_device_configuration(gpu) or [gpu])
        for gpu in tf.config.get_visible_devices("GPU")
    }


def _limit_gpu_memory() -> None:
    """Has TensorFlow take the memory of a GPU as it needs it, or up to the limit; by itself it takes all of it.

    How the program has divided GPUs before stays, and so does what TensorFlow has taken already.
    """
    limit = gpu_memory_limit()
    for gpu in tf.config.get_visible_devices("GPU"):
        if tf.config.get_logical_device_configuration(gpu):
            continue
        with contextlib.suppress(RuntimeError):  # TensorFlow has made its devices
            if limit is None:
                eager_context.allow_memory_growth(gpu)
            else:
                part = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
                tf.config.set_logical_device_configuration(gpu, [part])


def on_accelerators(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the replicas, in this process or on each worker, compute on anything but CPUs."""
    try:
        devices = strategy.extended.worker_devices
    except RuntimeError:  # TensorFlow's default strategy, one replica wherever TensorFlow puts it
        return False
    return any("CPU" not in device.upper() for device in devices)
