"""The time from the command to the first training step, and the number of updates of this run."""

from __future__ import annotations

import time

import tf2dist


class TrainingTimer(tf2dist.ExecutionCallback):
    """Measures the seconds from the user's command to the end of the first step, and counts updates.

    Args:
      began: Unix time of the command.

    Attributes:
      seconds_to_first_step: None before the first step has ended.
    """

    def __init__(self, began: float, clock=time.time):
        super().__init__()
        self._began, self._clock = began, clock
        self.seconds_to_first_step: float | None = None
        self._updates_before: int | None = None

    @property
    def updates(self) -> int:
        """Updates of this run, without those of the checkpoint that it continued from."""
        return 0 if self._updates_before is None else tf2dist.updates(self.model) - self._updates_before

    def on_epoch_begin(self, epoch, logs=None):
        if self._updates_before is None:
            self._updates_before = tf2dist.updates(self.model)

    def on_train_batch_end(self, batch, logs=None):
        if self.seconds_to_first_step is None:
            self.seconds_to_first_step = self._clock() - self._began
