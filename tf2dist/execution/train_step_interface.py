"""The interface between a model and those who run its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf


class TrainStep(Protocol):
    """A compiled model as pure step functions: what one replica does with its slice of a global batch.

    A step knows no strategy. It does not update metrics in place: it returns *metric sums*, a flat list of tensors
    that whoever runs the steps adds up over steps, replicas, workers and retries, so that no count is lost.
    """

    model: keras.Model
    sums_make_logs: bool  # are logs made of the sums alone, so that another process can make them?
    in_order: bool  # are some of the sums those of the last step, so that results are to be added in order?

    def reset(self) -> None:
        """Starts a new epoch or evaluation."""
        ...

    def zero_sums(self) -> list[tf.Tensor]:
        """The metric sums of no steps."""
        ...

    def update(self, batch: Any, slice_weight: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Makes one update of the model on `batch` and returns its metric sums. In a replica's graph.

        Args:
          batch: `(x, y)` or `(x, y, sample_weight)`: this replica's slice of the global batch.
          slice_weight: f32[], the fraction of the global batch in this slice; None when there is one replica.
        """
        ...

    def evaluate(self, batch: Any, slice_weight: tf.Tensor | None = None) -> list[tf.Tensor]:
        """The metric sums of one batch; updates nothing. Arguments as for `update`."""
        ...

    def repeat(self, step: Callable[[], list[tf.Tensor]], n: tf.Tensor) -> list[tf.Tensor]:
        """Calls `step()` `n` i32[] times and returns the metric sums of all. In a graph."""
        ...

    def add_sums(self, sums: Sequence, more: Sequence) -> list:
        """The metric sums of two runs of steps together, the later one's second."""
        ...

    def set_metrics(self, sums: Sequence[np.ndarray], strategy: tf.distribute.Strategy) -> None:
        """Gives the model's metrics the state that these sums are, as after Keras's own step."""
        ...

    def logs(self, sums: Sequence[np.ndarray]) -> dict[str, Any]:
        """What `keras.Model.fit` would log for these sums: the loss, then the metrics by name."""
        ...
