"""Updates of one variable by several workers, one after the other.

An optimizer with state reads it, changes it, writes it and then moves the weights by it, in several operations. Of
two workers that do so at once, one may write an old square of its gradients between the other's two: Adamax and
RMSprop then divide a large momentum by a square that is almost 0, and training is lost. (TensorFlow 1 had
`use_locking`, for each operation alone.) A mutex beside each variable, on its server, costs no message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from tf2dist.keras3 import all_of


@contextlib.contextmanager
def locked(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Inside, what a built optimizer does to a variable is done whole. In a graph."""
    several = [o for o in all_of(optimizer) if not _one_operation(o)]
    for each in several:
        vars(each)["update_step"] = _whole(each)
    try:
        yield
    finally:
        for each in several:
            del vars(each)["update_step"]


def _one_operation(optimizer: keras.optimizers.Optimizer) -> bool:
    return type(optimizer) is keras.optimizers.SGD and not optimizer.momentum


def _whole(optimizer):
    update_step = optimizer.update_step

    def update(gradient, variable, learning_rate):
        graph = tf.compat.v1.get_default_graph()
        with tf.device(variable.device):
            mutex = tf.raw_ops.MutexV2(shared_name=f"mutex of {optimizer._var_key(variable)}")
            with tf.control_dependencies([*tf.nest.flatten(gradient, expand_composites=True), learning_rate]):
                lock = tf.raw_ops.MutexLock(mutex=mutex)  # it waits for the gradient, not the others for it
            begin = len(graph.get_operations())
            with tf.control_dependencies([lock]):
                update_step(gradient, variable, learning_rate)
            with tf.control_dependencies(graph.get_operations()[begin:]):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)  # the lock lasts as long as it has a use

    return update
