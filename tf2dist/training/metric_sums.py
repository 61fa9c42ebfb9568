"""The metric sums of an epoch or evaluation, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.execution.train_step_interface import TrainStep


class MetricSums:
    """Adds up the metric sums of executions, in float64, so that counts stay exact past 2**24.

    Within an execution on replicas they have the dtype of the metric, as in Keras.
    """

    def __init__(self, step: TrainStep):
        self._step = step
        self.values = [np.asarray(z, np.float64) for z in step.zero_sums()]
        step.reset()

    @property
    def loss_is_nan(self) -> bool:
        """Whether the loss has become NaN."""
        return bool(np.isnan(self.values[0]))

    def take_up(self, sums: Sequence[np.ndarray]) -> bool:
        """Begins with the sums of an earlier job; returns false, and begins with none, if they are of other metrics."""
        shapes = [value.shape for value in self.values]
        # A custom train step has no sums: what it returns last are the logs.
        if len(shapes) > 1 and shapes != [np.shape(each) for each in sums]:
            return False
        self.add(sums)
        return True

    def add(self, sums: Sequence[np.ndarray]) -> None:
        """Adds what an execution returned."""
        self.values = self._step.add_sums(self.values, sums)

    def set_metrics(self, strategy: tf.distribute.Strategy) -> None:
        """Gives the model's metrics the state that these sums are."""
        self._step.set_metrics(self.values, strategy)

    def logs(self) -> dict[str, Any]:
        """The loss and the metrics so far, by name."""
        return self._step.logs(self.values)
