"""Parts of `tf.distribute` strategies that have no public name."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

import tensorflow as tf

# Of an operation that was on another task of the cluster, or needed one, when it was lost.
LOST_TASK_ERRORS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
_key_bases = itertools.count(1000, 1000)


def worker_count(strategy: tf.distribute.ParameterServerStrategy) -> int:
    """How many workers a coordinator leads."""
    return strategy._num_workers


def server_count(strategy: tf.distribute.Strategy) -> int:
    """How many parameter servers hold the strategy's variables; 1 where there are none."""
    return max(1, getattr(strategy.extended, "_num_ps", 1))


@contextlib.contextmanager
def tracing_for_servers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Inside, replicas are traced for the CPU of the process that runs them, which is a server.

    A replica's operations ask for its worker's device, as `/device:GPU:0`. On a server, which has no GPU, that is an
    error where placement is hard. A `tf.device` around them is not enough: optimizers begin replicas of their own, as
    `LossScaleOptimizer` does.
    """
    extended, gpus = strategy.extended, getattr(strategy.extended, "_num_gpus_per_worker", 0)
    if not gpus:
        yield
        return
    extended._num_gpus_per_worker = 0
    try:
        yield
    finally:
        extended._num_gpus_per_worker = gpus


class _Alone(tf.distribute.ReplicaContext):
    """A replica without others."""

    def all_reduce(self, reduce_op, value, options=None):
        return tf.nest.map_structure(tf.identity, value)


def without_other_replicas(strategy: tf.distribute.Strategy) -> tf.distribute.ReplicaContext:
    """A context in which the code of a replica runs that has no others to meet.

    Variables can be differentiated by there, and a `merge_call` is an ordinary call. That of `strategy.run` waits for
    all replicas' threads, so it is refused in conditions and loops (tensorflow/python/distribute/mirrored_run.py).
    """
    return _Alone(strategy, 0)


@contextlib.contextmanager
def as_single_replica(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Inside, the code of the one replica of a worker updates variables of servers as one that has no others.

    Also in conditions and loops; see `without_other_replicas`. `LossScaleOptimizer` would begin a replica of its own
    (keras/src/optimizers/loss_scale_optimizer.py, `_tf_apply`), whose `merge_call` is refused in them again.
    """
    extended = strategy.extended
    vars(extended)["_use_merge_call"] = lambda: False
    try:
        with without_other_replicas(strategy):
            yield
    finally:
        del vars(extended)["_use_merge_call"]


def has_variable_partitioner(strategy: tf.distribute.Strategy) -> bool:
    """Does the strategy cut variables into `ShardedVariable`s, which Keras 3 cannot train?"""
    return getattr(strategy.extended, "_variable_partitioner", None) is not None


def replicas_may_differ() -> bool:
    """May the replicas of the current strategy take different branches of a condition that updates variables?

    Where not, updates are a `merge_call`, in which the replicas' threads meet.
    """
    return tf.__internal__.distribute.strategy_supports_no_merge_call()


def mirrored(
    devices: Sequence[str], operations: tf.distribute.CrossDeviceOps | None = None
) -> tf.distribute.MirroredStrategy:
    """A strategy whose collectives have numbers of their own.

    Those of every `MirroredStrategy` begin with the same ones, so that a second one with fewer or more replicas ends
    the collectives of both for good ("is joining a group with size 2, but that group has size 3").

    Args:
      devices: of the replicas.
      operations: what adds up values of several devices; None for TensorFlow's own choice.
    """
    base = {"_collective_key_base": next(_key_bases)}
    return type("MirroredStrategy", (tf.distribute.MirroredStrategy,), base)(devices, operations)
