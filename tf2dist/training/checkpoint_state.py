"""Where a call of `fit` is: what a checkpoint needs to know besides the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class PlaceInEpoch:
    """What callbacks know of the epoch of a checkpoint.

    Attributes:
      ends: was the last step of the epoch made, and the epoch not ended? Its validation and its callbacks are to come.
      begins: were callbacks told of its beginning, though no step of it was made?
      stops: has a callback stopped the training in this epoch, which is not ended?
    """

    ends: bool = False
    begins: bool = False
    stops: bool = False


ELSEWHERE = PlaceInEpoch()  # between two epochs, or in the middle of one


@dataclass(frozen=True)
class SavedProgress:
    """How far a training was when a checkpoint was written.

    Attributes:
      global_step: updates since epoch 0.
      metric_sums: of its epoch so far, f64; zeros at the beginning of an epoch.
      steps_per_epoch: updates in an epoch of that training; None if it is not known.
      place: in the epoch.
      is_over: had a callback stopped the training, and was it over, when its job was preempted?
    """

    global_step: int
    metric_sums: list[np.ndarray]
    steps_per_epoch: int | None = None
    place: PlaceInEpoch = ELSEWHERE
    is_over: bool = False


class TrainingState:
    """The state of a training that is under way. The loop updates it and checkpoints read it.

    Args:
      model: the model that is trained.
      strategy: the model's strategy.
      steps_per_epoch: updates in an epoch.
      zero_sums: the metric sums of no steps.
      global_step: returns the updates since epoch 0.
      changes_at_the_end: may a callback give the weights other values when all updates are made?

    Attributes:
      reached: the global step that was made last, as far as this process was told; -1 before training has begun.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        steps_per_epoch: int,
        zero_sums: Sequence,
        global_step: Callable[[], int],
        changes_at_the_end: bool = False,
    ):
        self.model = model
        self.changes_at_the_end = changes_at_the_end
        self.strategy = strategy
        self.steps_per_epoch = steps_per_epoch
        self._zero_sums = [np.asarray(z, np.float64) for z in zero_sums]
        self._global_step = global_step
        self._epoch_sums = self._zero_sums
        self._start, self.reached = 0, -1

    @property
    def global_step(self) -> int:
        """Updates since epoch 0."""
        return self._global_step()

    @property
    def zero_sums(self) -> list[np.ndarray]:
        """The metric sums of no steps, f64."""
        return self._zero_sums

    def set_start(self, step: int) -> None:
        """Sets the global step at which this call of `fit` begins."""
        self._start = self.reached = step

    @property
    def has_trained(self) -> bool:
        """Has this call of `fit` made an update?"""
        return self.global_step > self._start

    def set_epoch_sums(self, values: list[np.ndarray]) -> None:
        """Sets the metric sums of the current epoch."""
        self._epoch_sums = values

    def progress(self, place: PlaceInEpoch) -> SavedProgress:
        """What to save now."""
        step = self.global_step
        sums = self._epoch_sums if place.ends or step % self.steps_per_epoch else self._zero_sums
        return SavedProgress(step, sums, self.steps_per_epoch, place)
