"""Mutexes on servers, so that workers update variables one after the other.

An optimizer with state reads it, changes it, writes it and then moves the weights by it, in several operations. If two
workers do so at once, one may write an old square of its gradients between the other's two operations: Adamax and
RMSprop then divide a large momentum by a square that is almost 0, and training diverges. (TensorFlow 1 had
`use_locking`, for each operation alone.) An optimizer without state adds to its variable in one operation; to rows of
it two workers must not add at once either, or one of two additions to the same row may be lost (`ResourceScatterSub`
takes a lock that others share, tensorflow/core/kernels/resource_variable_ops.cc). A mutex is on the variable's server
and costs no message.

Where all variables are on one server, a whole update is under one mutex, taken before anything is counted: a worker
that dies gets no mutex any more, and would leave an update of which a part is made. With several servers each variable
has its own, or all workers would wait for the slowest of them; but constraints, moving averages, sums of accumulated
gradients and scales of losses are written whole, before or after the updates of all variables, from what was read:
another worker's update in between would be lost. Updates with any of these are made one after the other, under one
mutex. (Not where a worker has several devices: its replicas meet in the middle of an update, and no block of operations
is around all of it.)

What TensorFlow has of a mutex lets in the next worker, too early, when one dies that waits for it
(`Mutex::AcquireAsync` in tensorflow/core/kernels/mutex_ops.cc): with three workers or more two may for once be in an
update at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from tf2dist.compat.optimizers import variable_key, wrapped_counters, wrapped_optimizers, writes_more_than_steps


@contextlib.contextmanager
def one_worker_at_a_time(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Inside, a built optimizer updates each variable and its state under that variable's mutex. In a graph."""
    optimizers = wrapped_optimizers(optimizer)
    for each in optimizers:
        vars(each)["update_step"] = _under_mutex(each)
    try:
        yield
    finally:
        for each in optimizers:
            del vars(each)["update_step"]


@contextlib.contextmanager
def one_update_at_a_time(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Inside is a whole update of these variables; one that writes more than the optimizer's steps is under a mutex.

    The mutex is on the current device, and held until all servers have made their parts. In a graph.
    """
    with held(_name_of_all(optimizer)) if _writes_more_than_steps(optimizer, variables) else contextlib.nullcontext():
        yield


def mutex_of_update(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], gradients
) -> str | None:
    """Names the mutex for a whole update of these variables; None if it adds to each once, and does no more."""
    once = all(_is_one_operation(each, g) for each in wrapped_optimizers(optimizer) for g in gradients if g is not None)
    return None if once and not _writes_more_than_steps(optimizer, variables) else _name_of_all(optimizer)


def _name_of_all(optimizer: keras.optimizers.Optimizer) -> str:
    return f"mutex of {variable_key(optimizer, wrapped_counters(optimizer)[0])}"


def _writes_more_than_steps(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> bool:
    constrained = any(v.constraint is not None for v in variables)
    return constrained or any(map(writes_more_than_steps, wrapped_optimizers(optimizer)))


def _is_one_operation(optimizer: keras.optimizers.Optimizer, gradient) -> bool:
    dense = not isinstance(gradient, tf.IndexedSlices)
    return dense and type(optimizer) is keras.optimizers.SGD and not optimizer.momentum


def _under_mutex(optimizer):
    update_step = optimizer.update_step

    def update(gradient, variable, learning_rate):
        if _is_one_operation(optimizer, gradient):
            update_step(gradient, variable, learning_rate)
            return
        arrived = [*tf.nest.flatten(gradient, expand_composites=True), learning_rate]
        with tf.device(variable.device), held(f"mutex of {variable_key(optimizer, variable)}", arrived):
            update_step(gradient, variable, learning_rate)

    return update


@contextlib.contextmanager
def held(name: str, arrived: Sequence = ()) -> Iterator[None]:
    """Operations that are made inside run under the mutex of this name, taken when all of `arrived` is there.

    It is on the current device.
    """
    graph = tf.compat.v1.get_default_graph()
    mutex = tf.raw_ops.MutexV2(shared_name=name)
    with tf.control_dependencies(arrived):
        lock = tf.raw_ops.MutexLock(mutex=mutex)
    begin = len(graph.get_operations())
    with tf.control_dependencies([lock]):
        yield
    with tf.control_dependencies(graph.get_operations()[begin:]):
        tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)  # held until its last use
