"""Updates with the gradients of the whole global batch.

Keras clips, scales back and accumulates the gradients of one replica, and sums them over the replicas afterwards, so
that what a clipped gradient is depends on the number of replicas (TensorFlow 2's own optimizers summed first). Here
the sum comes first. That, and what Keras does in conditions inside of a replica, is mended in this file; each is
guarded by a test in tests/test_keras3.py that fails when upstream has mended it.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer

from tf2dist.keras3 import all_of

_SUMMED = "_tf2dist_summed"  # on an optimizer: are the gradients that it gets summed over the replicas already?
_FREQUENCY = "_tf2dist_ema_overwrite_frequency"
_all_reduce_sum_gradients = TFOptimizer._all_reduce_sum_gradients


def _unless_summed(self, grads_and_vars):
    return grads_and_vars if vars(self).get(_SUMMED) else _all_reduce_sum_gradients(self, grads_and_vars)


TFOptimizer._all_reduce_sum_gradients = _unless_summed


def apply(optimizer: keras.optimizers.Optimizer, gradients: Sequence, variables: Sequence) -> None:
    """One update with the gradients of the whole global batch; to be called in a replica.

    Keras clips, scales back and accumulates what one replica has, and sums over the replicas afterwards, so that a
    clipped gradient depends on the number of replicas (TensorFlow 2's own optimizers summed first). Here the sum
    comes first.
    """
    context = tf.distribute.get_replica_context()
    known = [g for g in gradients if g is not None]
    if context.num_replicas_in_sync > 1 and known:
        summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, known))
        gradients = [None if g is None else next(summed) for g in gradients]
    if tf.__internal__.distribute.strategy_supports_no_merge_call() or not known:
        _apply_summed(optimizer, gradients, variables)
        return
    # Kept beside the attribute: another replica's thread, which waits in the middle of this, has taken that away.
    frequencies = [vars(o).setdefault(_FREQUENCY, o.ema_overwrite_frequency) for o in all_of(optimizer)]
    for each in all_of(optimizer):
        vars(each)["ema_overwrite_frequency"] = None
    if optimizer.gradient_accumulation_steps:
        _accumulate(optimizer, gradients, variables)
    elif any(o.gradient_accumulation_steps for o in all_of(optimizer)):
        raise ValueError(f"gradient_accumulation_steps inside of a {type(optimizer).__name__} needs strategy one")
    else:
        _apply_summed(optimizer, gradients, variables)
    for each, frequency in zip(all_of(optimizer), frequencies, strict=True):
        vars(each)["ema_overwrite_frequency"] = frequency
        if each.use_ema and frequency:
            _overwrite_with_averages(each, frequency)


def _apply_summed(optimizer, gradients, variables) -> None:
    for each in all_of(optimizer):
        vars(each)[_SUMMED] = True
    try:
        optimizer.apply(gradients, variables)
    finally:
        for each in all_of(optimizer):
            vars(each)[_SUMMED] = False


# Keras decides inside of a replica whether this is a step that updates, or one that overwrites the weights, in a
# condition whose branches meet the other replicas, which TensorFlow refuses ("merge_call called while defining a new
# graph"). So in the two functions that follow all replicas meet first, and decide together.


def _accumulate(optimizer, gradients, variables) -> None:
    """An update with `gradient_accumulation_steps` on several replicas."""
    steps = optimizer.gradient_accumulation_steps

    gradients, variables = optimizer._filter_empty_gradients(gradients, variables)
    scale = optimizer.loss_scale_factor or 1.0
    gradients = [g / scale for g in gradients]
    held = [optimizer._accumulated_gradients[optimizer._get_variable_index(v)] for v in variables]

    def update(gradients):
        mean = optimizer._clip_gradients([(g + a) / steps for g, a in zip(gradients, held, strict=True)])
        optimizer._apply_weight_decay(variables)
        vars(optimizer)[_SUMMED] = True
        optimizer._backend_update_step(mean, variables, optimizer.learning_rate)
        vars(optimizer)[_SUMMED] = False
        for a in held:
            a.assign(tf.zeros(a.shape, a.dtype))
        finish()

    def hold(gradients):
        optimizer._backend_increment_gradient_accumulators(gradients, held)
        finish()

    def finish():
        if optimizer.use_ema:
            optimizer._update_model_variables_moving_average(optimizer._trainable_variables)
        for variable in variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        optimizer._iterations.assign_add(1)

    def together(strategy, gradients):
        last = tf.equal((optimizer._iterations.value + 1) % steps, 0)
        run = strategy.extended.call_for_each_replica
        tf.cond(last, lambda: run(update, args=(gradients,)), lambda: run(hold, args=(gradients,)))

    tf.distribute.get_replica_context().merge_call(together, args=(gradients,))


def _overwrite_with_averages(optimizer, frequency: int) -> None:
    """What `ema_overwrite_frequency` asks for, after an update on several replicas."""

    def together(strategy):
        due = tf.equal(tf.math.floormod(tf.convert_to_tensor(optimizer.iterations), frequency), 0)
        write = optimizer._overwrite_model_variables_with_average_value
        tf.cond(due, lambda: (write(optimizer._trainable_variables), True)[1], lambda: True)

    tf.distribute.get_replica_context().merge_call(together)


def _finite_gradients(self, grads, trainable_variables) -> None:
    """What `LossScaleOptimizer` does with finite gradients, without a condition inside of a replica (see above)."""
    scale = self.dynamic_scale.value
    self.inner_optimizer.apply([None if g is None else g / scale for g in grads], trainable_variables)
    count = tf.convert_to_tensor(self.step_counter.value)
    grows = tf.equal(count, self.dynamic_growth_steps - 1)
    self.step_counter.assign(tf.where(grows, tf.zeros_like(count), count + 1))
    self.dynamic_scale.assign(tf.where(grows, 2 * scale, scale))


_keras_finite_gradients = keras.optimizers.LossScaleOptimizer._stateful_handle_finite_grads
keras.optimizers.LossScaleOptimizer._stateful_handle_finite_grads = _finite_gradients
