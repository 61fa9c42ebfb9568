"""Updates with the gradients of the whole global batch.

Keras clips, scales back and accumulates the gradients of one replica, and sums them over the replicas afterwards
(keras/src/optimizers/base_optimizer.py, `apply`, and keras/src/backend/tensorflow/optimizer.py,
`_all_reduce_sum_gradients`), so that what a clipped gradient is depends on the number of replicas (TensorFlow 2's own
optimizers summed first). Here the sum comes first.

Keras also decides inside of a replica whether this is a step that updates, or one that overwrites the weights with
their averages, in a condition whose branches meet the other replicas, which TensorFlow refuses ("merge_call called
while defining a new graph"). Here all replicas meet first, and decide together.

All else is Keras's own code. It is mended for the optimizers of an update of ours, for as long as that is traced.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf
from keras.src import ops
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tf2dist.compat.optimizers import overwrites_with_gradient, wrapped_optimizers
from tf2dist.compat.patching import Patch
from tf2dist.compat.replica_sparse_gradients import sum_slices
from tf2dist.compat.strategy_internals import replicas_may_differ

_UPDATES = "_tf2dist_updates"  # on an optimizer: replicas whose update, with summed gradients, is under way
_here = threading.local()  # `together`: are this replica's conditions those of an update of ours?


def apply_gradients(optimizer: keras.optimizers.Optimizer, gradients: Sequence, variables: Sequence) -> None:
    """Makes one update with the sum of all replicas' gradients. Called in a replica's graph.

    Args:
      gradients: of this replica's slice of the global batch, one a variable: tensors, `tf.IndexedSlices` or None.
      variables: `keras.Variable`s.
    """
    apply_sums(optimizer, sum_over_replicas(gradients, variables), variables)


def apply_sums(optimizer: keras.optimizers.Optimizer, gradients: Sequence, variables: Sequence) -> None:
    """As `apply_gradients`, with gradients that `sum_over_replicas` has returned."""
    with contextlib.ExitStack() as stack:
        for patch in (_tensorflow_optimizer, _base_optimizer, _loss_scaling, _conditions):
            stack.enter_context(patch.applied())
        stack.enter_context(_is_ours(optimizer))
        optimizer.apply(gradients, variables)


@contextlib.contextmanager
def _is_ours(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Inside, an optimizer and those that it wraps are mended. The blocks of replicas overlap."""
    optimizers = wrapped_optimizers(optimizer)
    for each in optimizers:
        vars(each)[_UPDATES] = vars(each).get(_UPDATES, 0) + 1
    try:
        yield
    finally:
        for each in optimizers:
            vars(each)[_UPDATES] -= 1
            if not vars(each)[_UPDATES]:
                del vars(each)[_UPDATES]


def sum_over_replicas(gradients: Sequence, variables: Sequence) -> list:
    """The gradients of the global batch, from those of this replica's slice; arguments as for `apply_gradients`."""
    context = tf.distribute.get_replica_context()
    result = list(gradients)
    if context.num_replicas_in_sync == 1:
        return result
    slices = [n for n, g in enumerate(gradients) if isinstance(g, tf.IndexedSlices)]
    values = [n for n, g in enumerate(gradients) if g is not None and n not in slices]
    if values:
        # A value that is to take the variable's place is no part of a sum; what replicas measure is a maximum.
        new = [overwrites_with_gradient(variables[n]) for n in values]
        replica = tf.range(context.num_replicas_in_sync) == context.replica_id_in_sync_group
        mine = [_row(gradients[n], replica) if o else gradients[n] for n, o in zip(values, new, strict=True)]
        for n, o, total in zip(values, new, context.all_reduce(tf.distribute.ReduceOp.SUM, mine), strict=True):
            result[n] = tf.reduce_max(total, 0) if o else total
    if slices:
        made = [_with_static_shape(gradients[n], variables[n]) for n in slices]
        totals = context.merge_call(lambda strategy, *tables: sum_slices(strategy, tables), args=made)
        for n, total in zip(slices, totals, strict=True):
            result[n] = total
    return result


def _row(value: tf.Tensor, replica: tf.Tensor) -> tf.Tensor:
    """The value in the row of this replica, and zeros in those of the others."""
    return tf.where(tf.reshape(replica, [-1, *[1] * len(value.shape)]), value, tf.zeros_like(value))


def _with_static_shape(slices: tf.IndexedSlices, variable) -> tf.IndexedSlices:
    values = tf.ensure_shape(slices.values, [slices.indices.shape[0], *variable.shape[1:]])
    return tf.IndexedSlices(values, slices.indices, tf.constant([*variable.shape], slices.indices.dtype))


def _all_reduce_sum_gradients(self, grads_and_vars):
    if _UPDATES in vars(self):
        return grads_and_vars  # they are sums already
    return _tensorflow_optimizer.original("_all_reduce_sum_gradients")(self, grads_and_vars)


def _overwrite_model_variables_with_average_value(self, trainable_variables) -> None:
    overwrite = _tensorflow_optimizer.original("_overwrite_model_variables_with_average_value")
    context = tf.distribute.get_replica_context()
    if _UPDATES in vars(self) and context is not None and not replicas_may_differ():
        context.merge_call(lambda strategy: overwrite(self, trainable_variables))
    else:
        overwrite(self, trainable_variables)


def _deciding(together: bool, original: Callable[[], Callable]) -> Callable:
    """A method of an optimizer whose conditions all replicas decide together, or each for itself."""

    def method(self, *args, **kwargs):
        if _UPDATES not in vars(self):
            return original()(self, *args, **kwargs)
        outer, _here.together = getattr(_here, "together", False), together
        try:
            return original()(self, *args, **kwargs)
        finally:
            _here.together = outer

    return method


def _cond(pred, true_fn, false_fn):
    context = tf.distribute.get_replica_context()
    if not getattr(_here, "together", False) or context is None or replicas_may_differ():
        return _conditions.original("cond")(pred, true_fn, false_fn)

    def decide(strategy, pred, true_fn, false_fn):
        first = strategy.experimental_local_results(pred)[0]  # all replicas have the same
        run = strategy.extended.call_for_each_replica  # each the branch that it has brought along
        return tf.cond(first, lambda: run(_call, args=(true_fn,)), lambda: run(_call, args=(false_fn,)))

    return context.merge_call(decide, args=(tf.convert_to_tensor(pred), true_fn, false_fn))


def _call(function):
    return function()


_tensorflow_optimizer = Patch(
    TFOptimizer,
    {
        "_all_reduce_sum_gradients": _all_reduce_sum_gradients,
        "_overwrite_model_variables_with_average_value": _overwrite_model_variables_with_average_value,
    },
)


# Conditions of the first two write variables and return nothing; those of the last one return tensors.
_base_optimizer = Patch(
    BaseOptimizer,
    {
        "_backend_apply_gradients": _deciding(True, lambda: _base_optimizer.original("_backend_apply_gradients")),
        "_overwrite_variables_directly_with_gradients": _deciding(
            False, lambda: _base_optimizer.original("_overwrite_variables_directly_with_gradients")
        ),
    },
)
_loss_scaling = Patch(
    keras.optimizers.LossScaleOptimizer,
    {"_stateful_handle_finite_grads": _deciding(True, lambda: _loss_scaling.original("_stateful_handle_finite_grads"))},
)
_conditions = Patch(ops, {"cond": _cond})
