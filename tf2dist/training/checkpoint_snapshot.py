"""What a checkpoint holds, at one moment of a training that may go on while it is written."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat.model import restored_variables, saves_only_keras_variables, seed_states
from tf2dist.compat.weights_files import save_weights
from tf2dist.training.checkpoint_compatibility import shapes_of
from tf2dist.training.checkpoint_shards import Shards, write_shards
from tf2dist.training.checkpoint_state import SavedProgress


class Snapshot:
    """The weights of a model, the variables of its optimizers and how far its training is, as they are now.

    It is taken in no time: TensorFlow gives a variable new memory at its next update while somebody reads the value it
    had, which stays where it is, on a server if the variable is there. So training needs twice the memory until the
    snapshot is forgotten. Values on a GPU are copied to the host.

    Args:
      model: built; not changed by this.
      progress: of the training.
      live: shall the variables be read when they are saved? Nothing may train meanwhile. Always so for a model that
        says itself what is saved of it (`save_own_variables`).
    """

    def __init__(self, model: keras.Model, progress: SavedProgress, *, live: bool = False) -> None:
        self.progress = progress
        self.seed_states = [v.numpy().tolist() for v in seed_states(model)]
        self.shapes = shapes_of(model)
        self._model, self._variables = model, stored_variables(model)
        self._values: list[tf.Tensor] | None = None
        if not live and saves_only_keras_variables(model):
            self._values = [_value(v) for v in self._variables]

    @property
    def is_live(self) -> bool:
        """Are the variables read when they are saved?"""
        return self._values is None

    @property
    def sizes(self) -> list[int]:
        """Bytes of each variable."""
        # NumPy knows no bfloat16.
        return [int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size for v in self._variables]

    def save_weights(self, path: str) -> None:
        """Writes what `keras.Model.load_weights` reads, in any thread."""
        values = None if self._values is None else zip(self._variables, self._values, strict=True)
        save_weights(self._model, path, values)

    def save_shards(self, directory: str) -> Shards:
        """Has each task write its variables, as `write_shards`, in any thread."""
        return write_shards(self._values or [_value(v) for v in self._variables], directory)


def stored_variables(model: keras.Model) -> list[keras.Variable]:
    """The variables of a model and its optimizers that a checkpoint holds, each once, in an order that stays."""
    return [v for v in {id(v): v for v in restored_variables(model)}.values() if v.dtype != "string"]


def _value(variable: keras.Variable) -> tf.Tensor:
    """The value of a variable, where the variable is, or on its host if that is a GPU."""
    with tf.device(variable.value.device):
        value = variable.value.read_value()
    return value.cpu() if "GPU" in value.device else value
