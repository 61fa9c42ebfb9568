"""Reads a checkpoint of TensorFlow 1."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.convert_checkpoint import ConvertError


class Damaged(ConvertError):
    """A checkpoint that cannot be read."""


class Checkpoint:
    """A checkpoint's variables; every error names the checkpoint.

    Attributes:
      prefix: as given.
      shapes, dtypes: of the variables, by name.
      partitions: into how many parts the rows of a variable were cut, by name, where they were.

    Raises:
      Damaged: it cannot be read.
    """

    def __init__(self, prefix: str):
        self.prefix = prefix
        self._reader: Any = self._read(lambda: tf.train.load_checkpoint(prefix))
        shapes = self._reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shape) for name, shape in sorted(shapes.items())}
        self.dtypes = {n: dtype.name for n, dtype in self._reader.get_variable_to_dtype_map().items()}
        self.partitions = self._partitions()

    def _partitions(self) -> dict[str, int]:
        """Into how many parts the rows of a variable were cut, for variables of which that is so.

        Only the reader's text tells: the key of a slice holds the variable's name and where the slice is
        (EncodeTensorNameSlice in tensorflow/core/util/saved_tensor_slice_util.cc).
        """
        keys = re.findall(rb"\x00([^\x00]+)\x00\x01.+? \(DT_\w+\) \[(\d+)", self._reader.debug_string(), re.DOTALL)
        slices = [(name.decode(), int(rows)) for name, rows in keys]
        return dict(collections.Counter(name for name, rows in slices if rows < self.shapes[name][0]))

    def get(self, name: str) -> np.ndarray:
        """The value of a variable."""
        return self._read(lambda: np.asarray(self._reader.get_tensor(name)), f" at {name}")

    def _read(self, read: Callable, where: str = "") -> Any:
        try:
            return read()
        except (tf.errors.OpError, ValueError, RuntimeError, LookupError) as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Damaged(f"the checkpoint {self.prefix} is truncated or damaged{where}: {said}") from None
