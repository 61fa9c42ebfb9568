"""The metric sums of an epoch or evaluation, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.execution.train_step import TrainStep


class MetricSums:
    """Adds up the metric sums that steps return, in float64, so that counts stay exact past 2**24."""

    def __init__(self, step: TrainStep):
        self._step = step
        self.values = [np.asarray(z, np.float64) for z in step.zero_sums()]
        step.reset()

    @property
    def loss_is_nan(self) -> bool:
        """Has the loss become NaN?"""
        return bool(np.isnan(self.values[0]))

    def add(self, sums: Sequence[np.ndarray]) -> None:
        """Adds what an execution returned."""
        self.values = self._step.add_sums(self.values, sums)

    def set_metrics(self, strategy: tf.distribute.Strategy) -> None:
        """Gives the model's metrics the state that these sums are."""
        self._step.set_metrics(self.values, strategy)

    def logs(self) -> dict[str, Any]:
        """The loss and the metrics so far, by name."""
        return self._step.logs(self.values)
