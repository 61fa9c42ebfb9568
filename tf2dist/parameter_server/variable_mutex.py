"""A mutex beside each variable on its server, so that workers update it one after the other.

An optimizer with state reads it, changes it, writes it and then moves the weights by it, in several operations. If two
workers do so at once, one may write an old square of its gradients between the other's two operations: Adamax and
RMSprop then divide a large momentum by a square that is almost 0, and training diverges. (TensorFlow 1 had
`use_locking`, for each operation alone.) The mutex is on the variable's server and costs no message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from tf2dist.compat.optimizers import variable_key, wrapped_optimizers


@contextlib.contextmanager
def one_worker_at_a_time(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Inside, a built optimizer updates each variable and its state under that variable's mutex. In a graph."""
    with_state = [o for o in wrapped_optimizers(optimizer) if not _is_one_operation(o)]
    for each in with_state:
        vars(each)["update_step"] = _under_mutex(each)
    try:
        yield
    finally:
        for each in with_state:
            del vars(each)["update_step"]


def _is_one_operation(optimizer: keras.optimizers.Optimizer) -> bool:
    return type(optimizer) is keras.optimizers.SGD and not optimizer.momentum


def _under_mutex(optimizer):
    update_step = optimizer.update_step

    def update(gradient, variable, learning_rate):
        graph = tf.compat.v1.get_default_graph()
        with tf.device(variable.device):
            mutex = tf.raw_ops.MutexV2(shared_name=f"mutex of {variable_key(optimizer, variable)}")
            with tf.control_dependencies([*tf.nest.flatten(gradient, expand_composites=True), learning_rate]):
                lock = tf.raw_ops.MutexLock(mutex=mutex)  # taken when the gradient is there, not before
            begin = len(graph.get_operations())
            with tf.control_dependencies([lock]):
                update_step(gradient, variable, learning_rate)
            with tf.control_dependencies(graph.get_operations()[begin:]):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)  # held until its last use

    return update
