"""Many small tensors that travel between a worker and the servers as few.

Each tensor that crosses from one process to another is a remote call of its own, which costs more than the bytes of
a small one: for a bias, a thousand times more. Those that have the same place and type are joined for the way.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf


class Packed:
    """Variables whose values, or tensors of whose shapes, travel together.

    Args:
      variables: built.
      most: bytes of a variable that is packed, at most. Larger ones travel alone: copying them would cost more than
        a call.
    """

    def __init__(self, variables: Sequence[keras.Variable], most: int):
        self.variables = list(variables)
        kinds: dict = {}
        for number, variable in enumerate(self.variables):
            value = variable.value
            size = value.shape.num_elements() * value.dtype.size
            kinds.setdefault((value.device, value.dtype, None if size <= most else number), []).append(number)
        self._kinds = [(device, numbers) for (device, *_), numbers in kinds.items()]

    def read(self) -> list[tf.Tensor]:
        """The values, on the device of the caller."""
        values: list = [None] * len(self.variables)
        for device, numbers in self._kinds:
            with tf.device(device):
                joined = _join([tf.convert_to_tensor(self.variables[n].value) for n in numbers])
            for n, value in zip(numbers, self._apart(joined, numbers), strict=True):
                values[n] = value
        return values

    def at_home(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors, one for each variable, on the variables' devices."""
        homes: list = [None] * len(tensors)
        for device, numbers in self._kinds:
            joined = _join([tensors[n] for n in numbers])
            with tf.device(device):
                for n, tensor in zip(numbers, self._apart(joined, numbers), strict=True):
                    homes[n] = tensor
        return homes

    def _apart(self, joined: tf.Tensor, numbers: Sequence[int]) -> list[tf.Tensor]:
        if len(numbers) == 1:
            return [joined]
        shapes = [self.variables[n].value.shape for n in numbers]
        parts = tf.split(joined, [s.num_elements() for s in shapes])
        return [tf.reshape(p, s) for p, s in zip(parts, shapes, strict=True)]


def _join(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)
