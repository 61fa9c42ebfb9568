"""What Keras 3 gets wrong under tf.distribute: one class or function each, with its upstream thread.

Each is guarded by a test in tests/test_keras3.py that fails when upstream has mended it.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer


class AtomicCounter(keras.Variable):
    """An update counter that loses nothing when several workers add to it at once.

    `keras.Variable.assign_add` reads, adds and writes, so two workers of a parameter server job can both write the
    same sum (parameter servers are not supported upstream: keras#18624). `tf.Variable.assign_add` is one operation
    on the server.
    """

    def assign_add(self, value):
        if in_stateless_scope():
            return super().assign_add(value)
        self.value.assign_add(tf.cast(value, self.dtype))
        return self.value


def count_atomically(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes a built optimizer count its updates with an `AtomicCounter`, in the same variable.

    `keras.Variable` has a `__class__` like any Python object, so the counter changes its behaviour and keeps its
    place, name and value in everything that already refers to it: checkpoints, schedules, `optimizer.variables`.
    """
    for counted in all_of(optimizer):
        counted._iterations.__class__ = AtomicCounter


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


def all_of(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """The optimizer, and those that it wraps (LossScaleOptimizer, MultiOptimizer)."""
    wrapped = [*getattr(optimizer, "_inner_optimizers", ()), getattr(optimizer, "inner_optimizer", None)]
    return [optimizer, *(o for o in wrapped if o is not None)]


def counters(optimizer: keras.optimizers.Optimizer) -> list[tf.Variable]:
    """The counts of updates, of the optimizer and those that it wraps; none where a step need not be an update."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return []
    return [counted._iterations.value for counted in all_of(optimizer)]


_STATELESS = (
    "assign", "assign_add", "assign_sub", "_apply_weight_decay", "_backend_update_step",
    "_overwrite_model_variables_with_average_value", "_backend_increment_gradient_accumulators",
)  # fmt: skip


@contextlib.contextmanager
def on_tensors(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Inside, and inside of a `keras.StatelessScope`, the optimizer's `apply` reads and writes the scope's tensors.

    Keras's `stateless_apply` raises on the TensorFlow backend ("incompatible with tf.distribute"), because that
    backend writes to `tf.Variable`s; its other backends' methods, which the base class has, write to the scope.
    """
    methods = {name: getattr(BaseOptimizer, name) for name in _STATELESS}
    methods["_var_key"] = lambda self, variable: TFOptimizer._var_key(self, variable._value)  # not the scope's tensor
    for name, method in methods.items():
        vars(optimizer)[name] = types.MethodType(method, optimizer)
    try:
        yield
    finally:
        for name in methods:
            del vars(optimizer)[name]
