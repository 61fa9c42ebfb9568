"""Parts of Keras optimizers that have no public name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf


def wrapped_optimizers(optimizer: keras.optimizers.Optimizer | None) -> list[keras.optimizers.Optimizer]:
    """The optimizer, and those that it wraps (`LossScaleOptimizer`, `MultiOptimizer`), and what these wrap.

    Empty for None, as of a model that was compiled without an optimizer, whose train step has its own.
    """
    if optimizer is None:
        return []
    wrapped = [*getattr(optimizer, "_inner_optimizers", ()), getattr(optimizer, "inner_optimizer", None)]
    return [optimizer, *(o for inner in wrapped if inner is not None for o in wrapped_optimizers(inner))]


def writes_more_than_steps(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an update writes something of all variables, or of the optimizer, beside each variable's step."""
    if optimizer.use_ema or optimizer.gradient_accumulation_steps:
        return True
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer | keras.optimizers.Nadam)


def overwrites_with_gradient(variable: keras.Variable) -> bool:
    """Whether a variable's gradient is its next value, as for the scales of float8."""
    return getattr(variable, "overwrite_with_gradient", False)


def update_counters(optimizer: keras.optimizers.Optimizer) -> list[tf.Variable]:
    """The counts of updates, of the optimizer and those that it wraps; none where a step need not be an update."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return []
    return [counted._iterations.value for counted in wrapped_optimizers(optimizer)]


def wrapped_counters(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The variables in which the optimizer, and those that it wraps, count updates."""
    return [counted._iterations for counted in wrapped_optimizers(optimizer)]


def learning_rate_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The variables that hold the learning rates of the optimizer and of those that it wraps; none under a schedule."""
    rates = [getattr(o, "_learning_rate", None) for o in wrapped_optimizers(optimizer)]
    return [rate for rate in rates if isinstance(rate, keras.Variable)]


def changes_weights_at_the_end(optimizer: keras.optimizers.Optimizer | None) -> bool:
    """Whether the end of training changes the weights, for example to their moving averages."""
    own = keras.optimizers.Optimizer.finalize_variable_values
    return any(o.use_ema or type(o).finalize_variable_values is not own for o in wrapped_optimizers(optimizer))


def variable_key(optimizer: keras.optimizers.Optimizer, variable) -> object:
    """Returns the optimizer's key for a variable, the same for a Keras variable and its backend value."""
    return optimizer._var_key(variable)


class AveragesWeights:
    """Mixin for a Keras optimizer with `use_ema` whose moving average has a decay of its own at each update.

    Keras's decay is one number (`ema_momentum`); `average_decay` takes its place.
    """

    iterations: keras.Variable
    use_ema: bool
    gradient_accumulation_steps: int | None
    _iterations: keras.Variable
    _model_variables_moving_average: list[keras.Variable | None]
    _get_variable_index: Callable[[Any], int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # which a mixin has for the type checker
        super().__init__(*args, **kwargs)

    def average_decay(self, updates: tf.Tensor) -> tf.Tensor:
        """The decay f32[] after `updates` f32[] updates."""
        raise TypeError(f"{type(self).__name__} must define average_decay")

    @property
    def averages(self) -> list[keras.Variable | None]:
        """The moving average of each weight, in the order of the weights; none without `use_ema`.

        None for a weight that has none, since its gradients overwrite it: the scales of float8.
        """
        return self._model_variables_moving_average if self.use_ema else []

    def _update_model_variables_moving_average(self, trainable_variables: Iterable[keras.Variable]) -> None:
        decay = self.average_decay(keras.ops.cast(self.iterations, "float32"))
        if steps := self.gradient_accumulation_steps:  # Keras comes here for each batch, and not for each update
            decay = keras.ops.where((self._iterations + 1) % steps == 0, decay, 1.0)
        for variable, average in zip(trainable_variables, self.averages, strict=True):
            if average is not None:
                average.assign(decay * average + (1 - decay) * variable)

    def index_of(self, variable: Any) -> int:
        """Returns the index of a weight among the optimizer's variables."""
        return self._get_variable_index(variable)
