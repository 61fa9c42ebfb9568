"""What training writes to --logdir: checkpoints, TensorBoard summaries, and the trained model."""

from __future__ import annotations

import keras

import tf2dist
from tf2dist.system import atomic_files
from trainers.common.summaries import Summaries


def callbacks(run, **frequency) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that write to --logdir while the job trains; none without --logdir.

    The same command run again continues from the last checkpoint.

    Args:
      run: the trainer's `Run`. Every process has the checkpoint callback; only the leader writes summaries.
      **frequency: of the checkpoints, as `tf2dist.Checkpoint` takes it.
    """
    logdir = run.shared.logdir
    if not logdir:
        return []
    checkpoint = tf2dist.Checkpoint(logdir, **frequency)
    return [checkpoint, Summaries(logdir)] if run.leads else [checkpoint]


def save_model(run, model: keras.Model) -> None:
    """Writes the trained model to `model.keras` in --logdir, in the process that leads.

    Raises:
      OSError: it cannot be written, for example because the disk is full.
    """
    if run.shared.logdir and run.leads:
        atomic_files.save(model, f"{run.shared.logdir}/model.keras")
