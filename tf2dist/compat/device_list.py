"""How much memory of a GPU TensorFlow may use, which `tf.config` does not say."""

from __future__ import annotations


def memory_limits() -> dict[str, int]:
    """Bytes by device, as "GPU:0". Makes TensorFlow's devices."""
    from tensorflow.python.client import device_lib

    return {found.name.removeprefix("/device:"): found.memory_limit for found in device_lib.list_local_devices()}
