"""Callbacks that print lines of progress while a model trains: one an epoch, or one every so many steps."""

from __future__ import annotations

import time

import keras

import tf2dist


class EpochLines(keras.callbacks.Callback):
    """Prints a line an epoch: its logs, seconds and examples a second.

    Args:
      say: prints a line.
      epochs: how many there are in all.
      batch_size: examples of an update; their mean where the last batch of a pass is shorter.
    """

    def __init__(self, say, epochs: int, batch_size: float, clock=time.perf_counter):
        super().__init__()
        self._say, self._epochs, self._batch_size, self._clock = say, epochs, batch_size, clock

    def on_epoch_begin(self, epoch, logs=None):
        # An epoch that an earlier run has begun has fewer updates left.
        self._began, self._updates_before = self._clock(), tf2dist.updates(self.model)

    def on_epoch_end(self, epoch, logs=None):
        seconds = self._clock() - self._began
        values = "  ".join(f"{name} {value:.4f}" for name, value in sorted((logs or {}).items()))
        examples = (tf2dist.updates(self.model) - self._updates_before) * self._batch_size
        rate = examples / seconds if seconds else 0
        self._say(f"epoch {epoch + 1}/{self._epochs}  {values}  {seconds:.1f} s  {rate:,.0f} examples/s")


class StepLines(tf2dist.ExecutionCallback):
    """Prints a line every so many updates: step, epoch and batch, cost, accuracy, and speed.

    Args:
      say: prints a line.
      every: updates between two lines.
      batch_size: examples of an update.
      steps_per_epoch: updates in a pass over the data.
    """

    def __init__(self, say, every: int, batch_size: int, steps_per_epoch: int, clock=time.perf_counter):
        super().__init__()
        self._say, self._every = say, every
        self._batch_size, self._steps_per_epoch = batch_size, steps_per_epoch
        self._clock = clock
        self._epoch_start = self._step = 0  # updates before this epoch; updates so far
        self._last_line: int | None = None  # the step of the last line

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_start = epoch * self._steps_per_epoch if self._last_line is None else self._step

    def on_train_batch_begin(self, batch, logs=None):
        if self._last_line is None:  # training may continue in the middle of an epoch
            self._step = self._last_line = self._epoch_start + batch
            self._last_time = self._clock()

    def on_train_batch_end(self, batch, logs=None):
        previous, self._step = self._step, self._epoch_start + batch + 1
        if self._step // self._every == previous // self._every:
            return
        now = self._clock()
        seconds = (now - self._last_time) / (self._step - self._last_line)
        self._last_time, self._last_line = now, self._step
        epoch, within = divmod(self._step - 1, self._steps_per_epoch)
        logs = logs or {}
        self._say(
            f"step {self._step}  epoch {epoch + 1}  batch {within + 1}/{self._steps_per_epoch}  "
            f"cost {logs.get('loss', float('nan')):.4f}  accuracy {logs.get('accuracy', float('nan')):.4f}  "
            f"{1000 * seconds:.2f} ms/step  {self._batch_size / seconds if seconds else 0:,.0f} examples/s"
        )
