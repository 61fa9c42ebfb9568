"""Loop chores: lines of progress, and the time to the first step."""

from __future__ import annotations

import math
import time

import keras

import tf2dist


class FirstStep(keras.callbacks.Callback):
    """Notes how many seconds after the user's command the first step was done, and how many were made.

    Args:
      began: Unix time of the command.
    """

    def __init__(self, began: float, clock=time.time):
        super().__init__()
        self._began, self._clock = began, clock
        self.seconds: float | None = None
        self._before: int | None = None

    @property
    def trained(self) -> int:
        """Updates that were made since, without those of a checkpoint that was gone on from."""
        return 0 if self._before is None else tf2dist.updates(self.model) - self._before

    def on_epoch_begin(self, epoch, logs=None):
        if self._before is None:
            self._before = tf2dist.updates(self.model)

    def on_train_batch_end(self, batch, logs=None):
        if self.seconds is None:
            self.seconds = self._clock() - self._began


class EpochLines(keras.callbacks.Callback):
    """Prints a line an epoch: its logs, and how fast it went.

    Args:
      say: prints a line.
      epochs, batch_size: what the line says.
    """

    def __init__(self, say, epochs: int, examples: int, clock=time.perf_counter):
        super().__init__()
        self._say, self._epochs, self._examples, self._clock = say, epochs, examples, clock

    def on_epoch_begin(self, epoch, logs=None):
        self._began = self._clock()

    def on_epoch_end(self, epoch, logs=None):
        seconds = self._clock() - self._began
        values = "  ".join(f"{name} {value:.4f}" for name, value in sorted((logs or {}).items()))
        rate = self._examples / seconds if seconds else 0
        self._say(f"epoch {epoch + 1}/{self._epochs}  {values}  {seconds:.1f} s  {rate:,.0f} examples/s")


class StepLines(keras.callbacks.Callback):
    """Prints a line every so many updates: step, epoch and batch, cost, accuracy, and how fast they went.

    Args:
      say: prints a line.
      every: updates between two lines.
      batch_size: examples of an update.
      per_epoch: updates in a pass over the data.
    """

    def __init__(self, say, every: int, batch_size: int, per_epoch: int, clock=time.perf_counter):
        super().__init__()
        self._say, self._every, self._batch_size, self._per_epoch = say, every, batch_size, per_epoch
        self._clock = clock
        self._before = self._step = 0
        self._shown: int | None = None

    def on_epoch_begin(self, epoch, logs=None):
        self._before = epoch * self._per_epoch if self._shown is None else self._step

    def on_train_batch_begin(self, batch, logs=None):
        if self._shown is None:  # training may go on in the middle
            self._step = self._shown = self._before + batch
            self._then = self._clock()

    def on_train_batch_end(self, batch, logs=None):
        last, self._step = self._step, self._before + batch + 1
        if self._step // self._every == last // self._every:
            return
        now = self._clock()
        each = (now - self._then) / (self._step - self._shown)
        self._then, self._shown = now, self._step
        epoch, within = divmod(self._step - 1, self._per_epoch)
        logs = logs or {}
        self._say(
            f"step {self._step}  epoch {epoch + 1}  batch {within + 1}/{self._per_epoch}  "
            f"cost {logs.get('loss', float('nan')):.4f}  accuracy {logs.get('accuracy', float('nan')):.4f}  "
            f"{1000 * each:.2f} ms/step  {self._batch_size / each if each else 0:,.0f} examples/s"
        )


def line(model: keras.Model) -> tuple[float, float]:
    """Weight and bias of a model that is a straight line."""
    w, b = (keras.ops.convert_to_numpy(v) for v in model.trainable_variables)
    return float(w[0, 0]), float(b[0])


class LineOnTheWay(keras.callbacks.Callback):
    """Prints the weight and bias of a straight line every so many updates, and the loss of the steps since the last.

    Args:
      say: prints a line.
      every: updates between two lines.
      per_pass: updates of a pass over the data; None where it has no end.
    """

    def __init__(self, say, every: int, per_pass: float | None):
        super().__init__()
        self._say, self._every, self._per_pass = say, every, per_pass
        self._before: tuple[int, float] | None = None  # steps, and the sum of their losses, at the last line

    def on_train_batch_begin(self, batch, logs=None):
        if self._before is None:
            self._before = batch, math.nan if batch else 0.0  # of what was trained before a restart

    def on_train_batch_end(self, batch, logs=None):
        steps, (before, loss) = batch + 1, self._before or (0, 0.0)
        if steps // self._every == before // self._every:
            return
        sums = steps * (logs or {}).get("loss", math.nan)
        mean = (sums - loss) / (steps - before)
        self._before = steps, sums
        w, b = line(self.model)
        place = f"pass {steps / self._per_pass:.0f}" if self._per_pass else f"step {steps}"
        known = "" if math.isnan(mean) else f"  loss {mean:.4f}"
        self._say(f"{place}  w {w:.4f}  b {b:.4f}{known}")
