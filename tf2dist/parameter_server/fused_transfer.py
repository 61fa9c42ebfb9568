"""Small tensors that travel between a worker and the servers in few messages.

Each tensor that crosses from one process to another is a remote call of its own, which for a bias costs a thousand
times more than its bytes. Tensors with the same device and dtype are concatenated for the way (as Horovod's tensor
fusion does for all-reduce).
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

# Bytes of a variable that is fused with others, at most: copying more takes longer than a message.
WORKER_STEP_LIMIT = 1 << 19  # of weights that a worker reads for each step
LOCAL_STEPS_LIMIT = 1 << 20  # of all that it reads for several local steps, and writes after them


class FusedTransfer:
    """Fetches the values of variables, or sends tensors of their shapes to where they are, to be unpacked there.

    Args:
      variables: built Keras variables.
      fused_bytes: the largest variable that is fused with others; copying a larger one costs more than a message.
    """

    def __init__(self, variables: Sequence[keras.Variable], fused_bytes: int):
        self._variables = list(variables)
        groups: dict = {}
        for number, variable in enumerate(self._variables):
            value = variable.value
            alone = None if nbytes(variable) <= fused_bytes else number
            groups.setdefault((value.device, value.dtype, alone), []).append(number)
        self._groups = [(device, numbers) for (device, *_), numbers in groups.items()]

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables, in the order in which they were given."""
        return self._variables

    def fetch(self) -> list[tf.Tensor]:
        """The variables' values, on the device of the caller."""
        values: list = [None] * len(self._variables)
        for device, numbers in self._groups:
            with tf.device(device):
                fused = _fuse([tf.convert_to_tensor(self._variables[n].value) for n in numbers])
            for n, value in zip(numbers, self._split(fused, numbers), strict=True):
                values[n] = value
        return values

    def send(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors, one for each variable, on the variables' devices, where `unpack` makes them of what returns."""
        sent = []
        for device, numbers in self._groups:
            fused = _fuse([tensors[n] for n in numbers])
            with tf.device(device):
                sent.append(tf.identity(fused))  # also one that is alone is to be there, for those that wait for it
        return sent

    def unpack(self, sent: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors that were sent, on the variables' devices.

        In the function of the server that uses them: what is made there it may overwrite with what it computes.
        """
        tensors: list = [None] * len(self._variables)
        for (device, numbers), fused in zip(self._groups, sent, strict=True):
            with tf.device(device):
                for n, tensor in zip(numbers, self._split(fused, numbers), strict=True):
                    tensors[n] = tensor
        return tensors

    def _split(self, fused: tf.Tensor, numbers: Sequence[int]) -> list[tf.Tensor]:
        if len(numbers) == 1:
            return [fused]
        shapes = [self._variables[n].value.shape for n in numbers]
        parts = tf.split(fused, [s.num_elements() for s in shapes])
        return [tf.reshape(p, s) for p, s in zip(parts, shapes, strict=True)]


def nbytes(variable: keras.Variable) -> int:
    """The size of a variable in bytes."""
    return variable.value.shape.num_elements() * variable.value.dtype.size


def _fuse(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)
