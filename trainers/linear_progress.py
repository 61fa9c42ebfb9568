"""Lines of progress of a straight line that is fitted."""

from __future__ import annotations

import math

import keras

import tf2dist


def weight_and_bias(model: keras.Model) -> tuple[float, float]:
    """Returns weight and bias of a model that is a straight line."""
    w, b = (keras.ops.convert_to_numpy(v) for v in model.trainable_variables)
    return float(w[0, 0]), float(b[0])


class WeightAndBiasLines(tf2dist.ExecutionCallback):
    """Prints the weight and bias of a straight line every so many updates, and the mean loss since the last line.

    Args:
      say: prints a line.
      every: updates between two lines.
      steps_per_pass: updates of a pass over the data; None for data without end.
    """

    def __init__(self, say, every: int, steps_per_pass: float | None):
        super().__init__()
        self._say, self._every, self._steps_per_pass = say, every, steps_per_pass
        self._last: tuple[int, float] | None = None  # at the last line: steps, and the sum of their losses

    def on_train_batch_begin(self, batch, logs=None):
        if self._last is None:
            self._last = batch, math.nan if batch else 0.0  # the losses before a restart are not known

    def on_train_batch_end(self, batch, logs=None):
        steps, (last_steps, last_sum) = batch + 1, self._last or (0, 0.0)
        if steps // self._every == last_steps // self._every:
            return
        loss_sum = steps * (logs or {}).get("loss", math.nan)
        mean = (loss_sum - last_sum) / (steps - last_steps)
        self._last = steps, loss_sum
        w, b = weight_and_bias(self.model)
        position = f"pass {steps / self._steps_per_pass:.0f}" if self._steps_per_pass else f"step {steps}"
        loss = "" if math.isnan(mean) else f"  loss {mean:.4f}"
        self._say(f"{position}  w {w:.4f}  b {b:.4f}{loss}")
