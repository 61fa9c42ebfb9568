"""How a process uses its devices and its cores."""

import os

import pytest

from tf2dist import Cluster, Task

CORES = os.cpu_count()


@pytest.mark.parametrize("tasks", [CORES, CORES + 1])
def test_threads_spin_only_where_each_task_has_a_core(tf, monkeypatch, tasks):
    """In what tf.distribute hands to workers, too: fails when TensorFlow no longer looks there."""
    from tensorflow.python.eager import context

    from tf2dist.runtime import tensorflow_config_proto

    monkeypatch.setattr(context.context(), "_config", None)
    addresses = tuple(f"host:{port}" for port in range(1, tasks + 1))
    tensorflow_config_proto.use(Cluster({"worker": addresses}, Task("worker", 0)))
    assert context.context().config.experimental.disable_thread_spinning == (tasks > CORES)
