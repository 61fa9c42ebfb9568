"""TensorFlow's eager context: what this process has set up, and what it was asked to place where."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks


def is_initialized() -> bool:
    """Has TensorFlow made its devices in this process?"""
    return context.context()._initialized


def use_session_config(config: tf.compat.v1.ConfigProto) -> None:
    """Makes this process, and the workers that it will connect to, use these options.

    `tf.config` has no setting for most of them, and tf.distribute takes the options of the servers that it starts,
    and of what it runs on those of others, from the process's context.
    """
    context.context()._config = config


def allow_memory_growth(gpu: tf.config.PhysicalDevice) -> None:
    """Has TensorFlow take the memory of this GPU as it needs it, also beside one that is divided into logical devices.

    `set_memory_growth` alone is forgotten, without a word, as soon as any device of the process is divided, a CPU too:
    `Context._compute_device_options` then leaves `allow_growth` out, and TensorFlow takes all memory of all GPUs. What
    it leaves out stays as the context's own options have it. They are of all GPUs: parts that have a limit take their
    memory as they need it too, up to that.

    Raises:
      RuntimeError: TensorFlow has made its devices.
    """
    tf.config.experimental.set_memory_growth(gpu, True)
    here = context.context()
    here._config = tf.compat.v1.ConfigProto() if here._config is None else here._config
    here._config.gpu_options.allow_growth = True


def current_device() -> str:
    """The device that a `tf.device` block asks for; "" outside of one."""
    return context.context().device_name or ""


def nodes_of_function(name: str) -> list:
    """The operations (NodeDef) of a function that this process has made; none for an unknown name."""
    here = context.context()
    return list(here.get_function_def(name).node_def) if here.has_function(name) else []


def on_operation(callback: Callable) -> None:
    """Calls `callback(op_type, inputs, attrs, outputs, op_name, graph)` for every operation that Python makes."""
    op_callbacks.add_op_callback(callback)
