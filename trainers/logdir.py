"""What goes into --logdir: checkpoints, from which the same command goes on, summaries, and the trained model."""

from __future__ import annotations

import keras
import tensorflow as tf

import tf2dist
from tf2dist import atomic


def callbacks(run, **cadence) -> list[keras.callbacks.Callback]:
    """What writes there while the job trains; nothing without --logdir.

    Args:
      run: of the trainer; checkpoints concern each of its processes, summaries the one that leads.
      **cadence: of the checkpoints, as `tf2dist.Checkpoint` takes it.
    """
    logdir = run.shared.logdir
    if not logdir:
        return []
    checkpoint = tf2dist.Checkpoint(logdir, **cadence)
    return [checkpoint, Summaries(logdir)] if run.leads else [checkpoint]


def save_model(run, model: keras.Model) -> None:
    """Writes the trained model there, in the process that leads.

    Raises:
      OSError: the disk is full, say.
    """
    if run.shared.logdir and run.leads:
        atomic.save(model, f"{run.shared.logdir}/model.keras")


class Summaries(keras.callbacks.Callback):
    """Writes cost and accuracy for TensorBoard, and histograms of weights and gradients if the optimizer keeps them.

    Args:
      directory: of the event files.
      every: updates between two histograms; scalars are written after every execution.
    """

    def __init__(self, directory: str, every: int = 100):
        super().__init__()
        self._writer = tf.summary.create_file_writer(directory)
        self._every = every
        self._step = self._next = 0

    def on_train_batch_end(self, batch, logs=None):
        self._step = int(self.model.optimizer.iterations.numpy())
        with self._writer.as_default(step=self._step):
            for name, value in (logs or {}).items():
                tf.summary.scalar("cost" if name == "loss" else name, value)
            if self._step >= self._next:
                self._next = self._step + self._every
                self._histograms()

    def on_epoch_end(self, epoch, logs=None):
        with self._writer.as_default(step=self._step):
            for name, value in (logs or {}).items():
                tf.summary.scalar(f"epoch_{name}", value)

    def on_train_end(self, logs=None):
        with self._writer.as_default(step=self._step):
            self._histograms()
        self._writer.close()

    def _histograms(self):
        gradients = getattr(self.model.optimizer, "gradients", ())
        for variable in self.model.trainable_variables if gradients else ():
            tf.summary.histogram(variable.path, keras.ops.convert_to_numpy(variable))
        for variable, gradient in zip(self.model.trainable_variables, gradients, strict=False):
            tf.summary.histogram(f"{variable.path}/gradient", keras.ops.convert_to_numpy(gradient))
