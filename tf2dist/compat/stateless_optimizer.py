"""A Keras optimizer on tensors instead of variables."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tf2dist.compat.optimizers import wrapped_optimizers
from tf2dist.compat.patching import Patch

_HERE = "_tf2dist_on_tensors"  # on an optimizer: does it work on tensors?


@contextlib.contextmanager
def on_tensors(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Inside, and inside of a `keras.StatelessScope`, the optimizer's `apply` reads and writes the scope's tensors.

    Keras's `stateless_apply` raises on the TensorFlow backend ("incompatible with tf.distribute"), because that
    backend writes to `tf.Variable`s. Here its methods behave as those of other backends, which write to the scope.
    What Keras does in conditions, whose branches cannot write to a scope outside of them, is chosen by `tf.where`.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_methods.applied())
        stack.enter_context(_loss_scaling.applied())
        for each in wrapped_optimizers(optimizer):
            stack.enter_context(_replaced(each, {_HERE: True, **_averaging(each)}))
        yield


@contextlib.contextmanager
def _replaced(optimizer: keras.optimizers.Optimizer, attributes: dict) -> Iterator[None]:
    """Attributes of this optimizer alone."""
    before = {name: vars(optimizer)[name] for name in attributes if name in vars(optimizer)}
    vars(optimizer).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(optimizer)[name]
        vars(optimizer).update(before)


def _averaging(optimizer: keras.optimizers.Optimizer) -> dict:
    """What replaces the condition in which Keras overwrites the weights with their moving averages."""
    frequency = optimizer.ema_overwrite_frequency
    if not (optimizer.use_ema and frequency):
        return {}

    def update_averages(self, variables: Sequence[keras.Variable]) -> None:
        type(self)._update_model_variables_moving_average(self, variables)
        due = tf.equal((self.iterations + 1) % frequency, 0)
        for variable, average in zip(variables, self._model_variables_moving_average, strict=True):
            if average is not None:
                variable.assign(tf.where(due, average, variable))

    method = types.MethodType(update_averages, optimizer)
    return {"_update_model_variables_moving_average": method, "ema_overwrite_frequency": None}


def _assign(self, variable: keras.Variable, value) -> None:
    if isinstance(value, tf.IndexedSlices):
        value = tf.tensor_scatter_nd_update(tf.convert_to_tensor(variable), value.indices[:, None], value.values)
    variable.assign(value)


def _assign_add(self, variable: keras.Variable, value) -> None:
    variable.assign(variable + tf.convert_to_tensor(value))  # which adds up slices of the same row


def _assign_sub(self, variable: keras.Variable, value) -> None:
    variable.assign(variable - tf.convert_to_tensor(value))


def _var_key(self, variable):
    value = variable._value if isinstance(variable, keras.Variable) else variable  # not the scope's tensor
    return _methods.original("_var_key")(self, value)


def _apply_where_finite(self, gradients: Sequence, variables: Sequence[keras.Variable]) -> None:
    """What `LossScaleOptimizer` does, which skips an update whose gradients are not finite."""
    finite, scale = self.check_finite(gradients), tf.convert_to_tensor(self.dynamic_scale)
    held = [*self.inner_optimizer.variables, *variables]
    before = [tf.convert_to_tensor(v) for v in held]
    whole = [g is None or v.overwrite_with_gradient for g, v in zip(gradients, variables, strict=True)]
    unscaled = [g if w else keras.ops.divide(g, scale) for g, w in zip(gradients, whole, strict=True)]
    self.inner_optimizer.apply(unscaled, variables)
    for variable, value in zip(held, before, strict=True):
        variable.assign(tf.where(finite, variable, value))
    count = tf.convert_to_tensor(self.step_counter)
    grows = tf.equal(count, self.dynamic_growth_steps - 1)
    self.step_counter.assign(tf.where(finite & tf.logical_not(grows), count + 1, tf.zeros_like(count)))
    self.dynamic_scale.assign(tf.where(finite, tf.where(grows, 2 * scale, scale), scale / 2))


def _where_told(patch: Callable[[], Patch], name: str, replacement: Callable) -> Callable:
    """A method that is `replacement` for optimizers on tensors, and for others what it was."""

    def method(self, *args, **kwargs):
        chosen = replacement if _HERE in vars(self) else patch().original(name)
        return chosen(self, *args, **kwargs)

    return method


_replacements = {"assign": _assign, "assign_add": _assign_add, "assign_sub": _assign_sub, "_var_key": _var_key} | {
    name: getattr(BaseOptimizer, name) for name in ("_apply_weight_decay", "_backend_update_step")
}
_methods = Patch(TFOptimizer, {n: _where_told(lambda: _methods, n, r) for n, r in _replacements.items()})
_loss_scaling = Patch(
    keras.optimizers.LossScaleOptimizer,
    {"_tf_apply": _where_told(lambda: _loss_scaling, "_tf_apply", _apply_where_finite)},
)
