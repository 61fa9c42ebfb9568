"""Moving averages of the weights that follow fast at first and slowly later, as `num_updates` made them in TF1."""

# Keras ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUntypedBaseClass=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportMissingTypeStubs=false, reportUntypedClassDecorator=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf2dist.compat.optimizers import AveragesWeights


@keras.saving.register_keras_serializable("tf2dist")
class AveragingSGD(AveragesWeights, keras.optimizers.SGD):
    """SGD that keeps a moving average of each weight, with decay min(`ema_momentum`, (1 + n) / (10 + n)) at update n.

    `tf.train.ExponentialMovingAverage(decay, num_updates=global_step)` averaged like this: the average starts at
    the initial weights, and early updates, which are far from where training ends, soon lose their weight. A model
    trained by `tf2dist.fit` ends with the averages as its weights; `swap_averages` exchanges them in between.

    Args:
      keep_gradients: keep the last gradient of each weight (summed over the replicas, which is the gradient of the
        mean loss over the global batch) in `gradients`, for histograms; of a table every row's. Costs a copy of the
        weights.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        ema_momentum: float = 0.99,
        keep_gradients: bool = False,
        use_ema: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, use_ema=use_ema, ema_momentum=ema_momentum, **kwargs)
        self.keep_gradients = keep_gradients
        self.gradients: list[keras.Variable | None] = []  # None as in `averages`

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        for variable, average in zip(variables, self.averages, strict=False):
            if average is not None:
                average.assign(variable)
        if self.keep_gradients:
            self.gradients = self.add_optimizer_variables(variables, "gradient")

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        if self.keep_gradients:
            # Of a table's rows that were looked up: assigning that would leave the other rows' last gradients.
            self.assign(self.gradients[self.index_of(variable)], tf.convert_to_tensor(gradient))
        super().update_step(gradient, variable, learning_rate)

    def average_decay(self, updates: tf.Tensor) -> tf.Tensor:
        return ops.minimum(self.ema_momentum, (1 + updates) / (10 + updates))

    def swap_averages(self, variables: Sequence[keras.Variable]) -> None:
        """Exchanges weights and averages, for evaluating with the averages; a second call changes back."""
        for variable, average in zip(variables, self.averages, strict=True):
            if average is None:
                continue
            weights = ops.convert_to_numpy(variable)
            variable.assign(ops.convert_to_numpy(average))
            average.assign(weights)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"keep_gradients": self.keep_gradients}


@keras.saving.register_keras_serializable("tf2dist")
class AveragingAdagrad(AveragesWeights, keras.optimizers.Adagrad):
    """Adagrad that keeps the mean of each weight over about the last third of all updates, with decay n / (3 + n).

    Its steps get smaller like 1 / sqrt(n), so at a high rate the last weights still jump about where it ends, and their
    mean does not (polynomial-decay averaging: Shamir and Zhang, ICML 2013). A model trained by `tf2dist.fit` ends with
    the means as its weights.
    """

    def __init__(self, learning_rate: Any = 0.001, use_ema: bool = True, **kwargs: Any) -> None:
        super().__init__(learning_rate, use_ema=use_ema, **kwargs)

    def average_decay(self, updates: tf.Tensor) -> tf.Tensor:
        return updates / (3 + updates)
