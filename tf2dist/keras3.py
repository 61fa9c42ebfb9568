"""What Keras 3 gets wrong under tf.distribute: one class or function each, with its upstream thread.

Each is guarded by a test in tests/test_keras3.py that fails when upstream has mended it.
"""

import keras
import tensorflow as tf


class AtomicCounter(keras.Variable):
    """An update counter that loses nothing when several workers add to it at once.

    `keras.Variable.assign_add` reads, adds and writes, so two workers of a parameter server job can both write the
    same sum (parameter servers are not supported upstream: keras#18624). `tf.Variable.assign_add` is one operation
    on the server.
    """

    def assign_add(self, value):
        self.value.assign_add(tf.cast(value, self.dtype))
        return self.value


def count_atomically(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes a built optimizer count its updates with an `AtomicCounter`, in the same variable.

    `keras.Variable` has a `__class__` like any Python object, so the counter changes its behaviour and keeps its
    place, name and value in everything that already refers to it: checkpoints, schedules, `optimizer.variables`.
    """
    for counted in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if counted is not None:
            counted.iterations.__class__ = AtomicCounter


def aggregate_by_default(strategy: tf.distribute.Strategy) -> None:
    """Lets replicas of a `CentralStorageStrategy` update variables that were made without an `aggregation`.

    Keras makes the state of Dropout, BatchNormalization and home-made counters with `aggregation="none"`; central
    storage then raises "You must specify an aggregation method" at the first update inside a replica. Statistics
    are averaged over the replicas; whole numbers are taken from the first.
    """
    extended = strategy.extended
    create = extended._create_variable

    def create_with_aggregation(next_creator, **kwargs):
        if kwargs.get("aggregation") in (None, tf.VariableAggregation.NONE):
            kwargs["aggregation"] = _natural_aggregation(kwargs)
        return create(next_creator, **kwargs)

    extended._create_variable = create_with_aggregation


def _natural_aggregation(kwargs) -> tf.VariableAggregation:
    dtype = kwargs.get("dtype")
    is_float = dtype is None or tf.as_dtype(dtype).is_floating
    return tf.VariableAggregation.MEAN if is_float else tf.VariableAggregation.ONLY_FIRST_REPLICA
