"""`tf2dist.load_checkpoint`: the weights of a checkpoint, outside of the training that wrote it."""

# Keras ships no types.
# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import logging
import os

import keras

from tf2dist.compat.model import has_optimizer, layers_of
from tf2dist.errors import CheckpointError, UsageError
from tf2dist.training import checkpoint_files
from tf2dist.training.checkpoint_compatibility import shapes_of

_log = logging.getLogger("tf2dist")


def load_checkpoint(model: keras.Model, path: str | os.PathLike[str], *, best: str | None = None) -> int:
    """Gives a model the weights of a checkpoint that `tf2dist.Checkpoint` has written, sharded or not.

    A compiled model also gets the optimizer's variables, which must be those of the same optimizer; one that is not
    compiled gets the weights alone. In a job of several peers each reads them.

    Args:
      model: built, of any strategy, on any number of servers.
      path: a checkpoint, or the directory of several: the newest of them is read that is whole, or the best.
      best: name of a value in an epoch's logs, such as "val_loss": reads the one that `keep_best` has kept by it.

    Returns:
      The updates after which it was written.

    Raises:
      ValueError: the model is not built.
      CheckpointError: there is none, or it is damaged or of another model.
    """
    path = os.fspath(path)
    if not (model.built or all(layer.built for layer in layers_of(model) if layer is not model)):
        raise UsageError("load_checkpoint needs a model that is built: call it on some data, or give it an Input")
    is_one = os.path.exists(os.path.join(path, checkpoint_files.STATE_FILE))
    if best is not None:
        found = checkpoint_files.find_best(path, best)
        if found is None:
            raise CheckpointError(f"no checkpoint in {path} was kept as the best by {best}")
        paths = [found[0]]
    else:
        paths = [path] if is_one else checkpoint_files.list_checkpoints(path)[::-1]
    why = f"there is no checkpoint in {path}"
    for each in paths:
        if has_optimizer(model) and not model.optimizer.built and not _fits(model, each):
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)
        try:
            return checkpoint_files.read_checkpoint(model, each).global_step
        except checkpoint_files.DamagedError as error:
            why = f"{each} is damaged: {error}"
            if len(paths) > 1:
                _log.warning("tf2dist: %s is damaged (%s), and is not used", each, error)
    raise CheckpointError(why)


def _fits(model: keras.Model, path: str) -> bool:
    """Whether a checkpoint has what the optimizer has now: one that a `train_step` does not use is never built."""
    return checkpoint_files.read_shapes(path).get("optimizer") == shapes_of(model)["optimizer"]
