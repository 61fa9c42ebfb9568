"""Keras's callbacks around our loop."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from tf2dist import peers

# They write files, which is for one process of a job to do.
_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.RemoteMonitor,
)


def hooks_for(
    model: keras.Model, callbacks: Sequence[keras.callbacks.Callback], *, verbose: int = 0, epochs: int = 1, steps
) -> keras.callbacks.CallbackList:
    """The callbacks of this process, with a history, and a progress bar if `verbose`.

    Raises:
      ValueError: one of them is no callback of Keras.
    """
    wrong = [c for c in callbacks if not isinstance(c, keras.callbacks.Callback)]
    if wrong:
        raise ValueError(f"callbacks must be keras.callbacks.Callback objects, found {type(wrong[0]).__name__}")
    rank = peers.of(model.distribute_strategy)[1]
    mine = [c for c in callbacks if rank == 0 or not isinstance(c, _WRITERS)]
    hooks = keras.callbacks.CallbackList(
        mine, add_history=True, add_progbar=bool(verbose) and rank == 0, verbose=verbose, epochs=epochs, steps=steps,
        model=model,
    )  # fmt: skip
    hooks.restores = any(isinstance(c, keras.callbacks.BackupAndRestore) for c in callbacks)
    return hooks


def wants_batch_logs(hooks: keras.callbacks.CallbackList) -> bool:
    """Does any callback look at what happens within an epoch? Computing metrics for nobody costs time."""
    base = keras.callbacks.Callback
    names = ("on_train_batch_end", "on_batch_end")
    return any(getattr(type(c), name) is not getattr(base, name) for c in hooks.callbacks for name in names)


def has(hooks: keras.callbacks.CallbackList, kind: type) -> bool:
    """Is there a callback of this kind?"""
    return any(isinstance(c, kind) for c in hooks.callbacks)
