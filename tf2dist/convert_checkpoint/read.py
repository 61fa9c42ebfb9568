"""Reads a checkpoint of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.convert_checkpoint import ConvertError


class Damaged(ConvertError):
    """A checkpoint that cannot be read."""


class Checkpoint:
    """A checkpoint's variables; every error names the checkpoint.

    Raises:
      Damaged: it cannot be read.
    """

    def __init__(self, prefix: str):
        self.prefix = prefix
        self._reader: Any = self._read(lambda: tf.train.load_checkpoint(prefix))
        shapes = self._reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shape) for name, shape in sorted(shapes.items())}
        self.dtypes = {n: dtype.name for n, dtype in self._reader.get_variable_to_dtype_map().items()}

    def get(self, name: str) -> np.ndarray:
        """The value of a variable."""
        return self._read(lambda: np.asarray(self._reader.get_tensor(name)), f" at {name}")

    def _read(self, read: Callable, where: str = "") -> Any:
        try:
            return read()
        except (tf.errors.OpError, ValueError, RuntimeError, LookupError) as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Damaged(f"the checkpoint {self.prefix} is truncated or damaged{where}: {said}") from None
