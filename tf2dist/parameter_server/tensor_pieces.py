"""Arrays on their way to a worker: cut into pieces here, joined to tensors there.

A message to a worker holds a tensor as a whole, of 2 GB at most, and there are several copies of it in this process
until the worker has it. A piece is made when it is sent, so the memory that sending takes does not grow with the data.
"""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.input.array_adapter import array_spec

_STRING_BYTES = 24  # that a string takes in a tensor, beside its text


class ArrayPieces:
    """An array of numbers or strings, in pieces of at most `nbytes`; a single string may be larger.

    Nothing is copied before it is iterated over, and a piece at a time then: user's arrays may fill the memory, and
    may be views of others, or of files.

    Attributes:
      spec: shape and dtype of the tensor.

    Raises:
      ValueError: an array of objects holds something else than strings.
    """

    def __init__(self, array: np.ndarray[Any, Any], nbytes: int) -> None:
        self.spec: tf.TensorSpec = array_spec(array)
        self._array = array
        self._nbytes = nbytes
        self._bounds = _bounds(array, nbytes)

    def __len__(self) -> int:
        return max(1, len(self._bounds) - 1)

    def __iter__(self) -> Iterator[Any]:
        """Yields a small array as it is; else pieces, values [n] in C order, or parts of a single string."""
        if len(self) == 1:
            yield self._array
            return
        for start, stop in zip(self._bounds, self._bounds[1:], strict=False):
            if not self._array.ndim:
                yield self._array[()][start:stop]
            elif self._array.flags.c_contiguous:
                yield self._array.reshape(-1)[start:stop]
            else:  # of which reshape would copy all
                yield self._array.flat[start:stop]

    def joined(self, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        """The tensor whose pieces these are, on the device of the current scope.

        Numbers that say how to join are made here and sent. TensorFlow would put them there itself by a call that holds
        Python's lock, and so stops the threads of all workers when this one is stopped.
        """
        if len(pieces) == 1:
            return pieces[0]
        if not self._array.ndim:
            return tf.raw_ops.StringJoin(inputs=pieces)
        with tf.device(None):
            axis, shape = tf.constant(0), tf.constant(self._array.shape, tf.int64)
        return tf.raw_ops.Reshape(tensor=tf.raw_ops.ConcatV2(values=pieces, axis=axis), shape=shape)


def _bounds(array: np.ndarray[Any, Any], nbytes: int) -> Sequence[int]:
    """Where pieces begin and end, in values; in bytes of a single string."""
    if array.dtype.kind != "O":
        of_one = array.itemsize + (_STRING_BYTES if array.dtype.kind in "SU" else 0)
        return [*range(0, array.size, max(1, nbytes // of_one)), array.size]
    if not array.ndim:
        return [*range(0, len(array[()]), nbytes), len(array[()])]
    ends = np.cumsum(np.fromiter(map(_string_bytes, array.flat), np.int64, array.size))
    bounds = [0]
    while bounds[-1] < array.size:
        sent = ends[bounds[-1] - 1] if bounds[-1] else 0
        bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends, sent + nbytes, "right"))))
    return bounds


def _string_bytes(value: Any) -> int:
    """The most that a string takes in a tensor."""
    if isinstance(value, bytes):
        return len(value) + _STRING_BYTES
    if isinstance(value, str):
        return len(value) * (1 if value.isascii() else 4) + _STRING_BYTES
    raise ValueError(f"an array of objects must hold strings, found {value!r}")


def copy_to_device(arrays: Sequence[ArrayPieces], is_wanted: Callable[[], bool]) -> list[tf.Tensor] | None:
    """Copies arrays to the CPU of the task of the current device scope, a piece at a time; returns the tensors.

    Returns None as soon as `is_wanted()` is false.
    """
    tensors: list[tf.Tensor] = []
    with tf.device("/cpu:0"):
        for array in arrays:
            there: list[tf.Tensor] = []
            for piece in array:
                if not is_wanted():
                    return None
                with tf.device(None):
                    here = tf.constant(piece, array.spec.dtype)
                there.append(tf.raw_ops.Identity(input=here))  # which waits until it is there
            tensors.append(array.joined(there))
    return tensors
