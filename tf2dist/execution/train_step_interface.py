"""The interfaces between a model and those who run its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tf2dist.execution.loss_fractions import Fraction


class TrainStep(Protocol):
    """A compiled model as step functions: what one replica does with its slice of a global batch.

    A step returns *metric sums*, a flat list of tensors that whoever runs the steps adds up over steps, replicas,
    workers and retries, so that no count is lost. Only where `sums_make_logs` is false does it update the metrics in
    their variables, as Keras does; such a step runs on replicas in lockstep alone.

    Attributes:
      model: whose steps these are.
      optimizers: with which an update applies gradients.
      sums_make_logs: are logs made of the sums alone, so that another process can make them?
      in_order: are some of the sums those of the last step, so that results are to be added in order?
    """

    model: keras.Model
    optimizers: list[keras.optimizers.Optimizer]
    sums_make_logs: bool
    in_order: bool

    @property
    def merges(self) -> Mapping[int, str]:
        """Of the metric sums that are not added up over slices, by position: "max" or "min"."""
        ...

    @property
    def as_gradient_step(self) -> GradientStep | None:
        """This step, if its gradients can be computed in one place and applied in another; None if not."""
        ...

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


class GradientStep(TrainStep, Protocol):
    """A step whose updates can be made in parts: gradients in one place or several, which are applied in another."""

    def gradients(self, batch: Any, slice_weight: tf.Tensor | None) -> tuple[list, list[tf.Tensor]]:
        """The gradients of this slice's contribution to the global batch's loss, and the slice's metric sums.

        Arguments as for `update`. The replicas may exchange sums.

        Returns:
          A tensor, `tf.IndexedSlices` or None for each trainable variable; sums as of `update`.
        """
        ...

    def fractions(self, batch: Any, slice_weight: tf.Tensor | None) -> tuple[list[Fraction], list[tf.Tensor]]:
        """What a slice whose worker exchanges nothing with others contributes to the gradients and metric sums.

        Arguments as for `update`. The sums lack what is made of losses; `join` puts it in.
        """
        ...

    def join(
        self, slices: Sequence[tuple[list[Fraction], list[tf.Tensor]]], lookups: Sequence[Sequence[int]]
    ) -> tuple[list, list[tf.Tensor]]:
        """The gradients and metric sums of a global batch from the `fractions` of its slices.

        Slices may be missing: the loss is then the mean over those that are there.

        Args:
          lookups: for each fraction and variable, how often its gradient has one row at most, where these are looked
            up for all examples together, as those of positions: one device has them once, with the sum over the
            examples. 0 for other gradients.
        """
        ...

    def apply(self, gradients: Sequence) -> None:
        """Makes one update with the sum of all replicas' gradients, one a trainable variable."""
        ...
