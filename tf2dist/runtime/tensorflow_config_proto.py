"""TensorFlow's session options of a cluster's tasks: threads, no GPU for a ps, and memory of GPUs."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import os

import tensorflow as tf

from tf2dist.cluster.spec import Cluster
from tf2dist.compat import eager_context
from tf2dist.runtime import devices

_THREADS = 2  # that run operations, at least; with more than cores, asynchronous updates are a tenth slower


def make(cluster: Cluster) -> tf.compat.v1.ConfigProto:
    """Returns the session options of a cluster's tasks.

    TensorFlow's threads spin for a while before they sleep. With more tasks than cores that takes time from the other
    tasks: a tenth of all processor time, measured. It runs operations in as many threads as there are cores, and with
    a single one a worker of servers makes no step, for ever. (TensorFlow's tutorial of parameter servers has one
    thread more than workers; two are enough for what is tested.)
    """
    options = tf.compat.v1.ConfigProto()
    options.experimental.disable_thread_spinning = cluster.most_tasks_on_a_host > (os.cpu_count() or 1)
    if len(os.sched_getaffinity(0)) < _THREADS and "TF_NUM_INTEROP_THREADS" not in os.environ:
        options.inter_op_parallelism_threads = _THREADS
    options.gpu_options.allow_growth = True  # or TensorFlow's server takes all memory of all GPUs that it sees
    if cluster.task.job == "ps":
        options.device_count["GPU"] = 0  # it holds variables in the host's memory
    return options


def make_for_server(cluster: Cluster) -> tf.compat.v1.ConfigProto:
    """Returns the options of a task that only serves: those of `make`, with the limit on its GPUs' memory."""
    options = make(cluster)
    limit = devices.gpu_memory_limit()
    if limit is not None and cluster.task.job != "ps":
        for _ in tf.config.get_visible_devices("GPU"):
            options.gpu_options.experimental.virtual_devices.add(memory_limit_mb=[limit])
    return options


def use(cluster: Cluster) -> None:
    """Sets these options for this process and for the workers that it will connect to.

    `tf.config` has no setting for it. tf.distribute takes the options of the servers that it starts, and of what it
    runs on other servers, from the process's context.
    """
    eager_context.use_session_config(make(cluster))
