"""TensorBoard summaries of a training: scalars of its logs, histograms of weights and gradients."""

from __future__ import annotations

import keras
import tensorflow as tf

import tf2dist


class Summaries(tf2dist.ExecutionCallback):
    """Writes scalars of the logs, and histograms of weights and gradients if the optimizer keeps its gradients.

    Args:
      directory: of the event files.
      every: updates between two histograms. Scalars are written after every execution.
    """

    def __init__(self, directory: str, every: int = 100):
        super().__init__()
        self._writer = tf.summary.create_file_writer(directory)
        self._every = every
        self._step = self._next_histograms = 0

    def on_train_batch_end(self, batch, logs=None):
        self._step = int(self.model.optimizer.iterations.numpy())
        with self._writer.as_default(step=self._step):
            for name, value in (logs or {}).items():
                tf.summary.scalar("cost" if name == "loss" else name, value)
            if self._step >= self._next_histograms:
                self._next_histograms = self._step + self._every
                self._write_histograms()

    def on_epoch_end(self, epoch, logs=None):
        with self._writer.as_default(step=self._step):
            for name, value in (logs or {}).items():
                tf.summary.scalar(f"epoch_{name}", value)

    def on_train_end(self, logs=None):
        self._step = int(self.model.optimizer.iterations.numpy())  # also where nothing was left to train
        with self._writer.as_default(step=self._step):
            self._write_histograms()
        self._writer.close()

    def _write_histograms(self):
        gradients = getattr(self.model.optimizer, "gradients", ())
        for variable in self.model.trainable_variables if gradients else ():
            tf.summary.histogram(variable.path, keras.ops.convert_to_numpy(variable))
        for variable, gradient in zip(self.model.trainable_variables, gradients, strict=False):
            if gradient is not None:
                tf.summary.histogram(f"{variable.path}/gradient", keras.ops.convert_to_numpy(gradient))
