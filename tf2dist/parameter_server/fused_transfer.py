"""Small tensors that travel between a worker and the servers in few messages.

Each tensor that crosses from one process to another is a remote call of its own, which for a bias costs a thousand
times more than its bytes. Tensors with the same device and dtype are concatenated for the way (as Horovod's tensor
fusion does for all-reduce).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

# Bytes of a variable that is fused with others, at most: copying more takes longer than a message.
WORKER_STEP_LIMIT = 1 << 19  # of weights that a worker reads for each step
LOCAL_STEPS_LIMIT = 1 << 20  # of all that it reads for several local steps, and writes after them


class Fusion:
    """What is concatenated of tensors with these devices, dtypes and shapes: one tensor for each group.

    Args:
      kinds: a device, dtype and shape for each tensor. One whose size is not known is alone.
      fused_bytes: the largest tensor that is fused with others; copying a larger one costs more than a message.

    Attributes:
      groups: a device, and the numbers of the tensors that are one there.
    """

    def __init__(self, kinds: Sequence[tuple[str, tf.DType, tf.TensorShape]], fused_bytes: int):
        self._shapes = [shape for _, _, shape in kinds]
        groups: dict = {}
        for number, (device, dtype, shape) in enumerate(kinds):
            size = shape.num_elements()
            alone = number if size is None or size * dtype.size > fused_bytes else None
            groups.setdefault((device, dtype, alone), []).append(number)
        self.groups = [(device, numbers) for (device, *_), numbers in groups.items()]

    def fuse(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """A tensor for each group, on the device of the caller."""
        return [_fuse([tensors[n] for n in numbers]) for _, numbers in self.groups]

    def fetch(self, value: Callable[[int], tf.Tensor], after: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
        """What `value(number)` makes of each tensor on its device after all of `after`; on the device of the caller."""
        return self.split(self.pack(value, after), here=True)

    def pack(self, value: Callable[[int], tf.Tensor], after: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
        """As `fetch`, a tensor for each group, on its device."""
        packed = []
        for device, numbers in self.groups:
            with tf.device(device), tf.control_dependencies(after):
                packed.append(_fuse([value(n) for n in numbers]))
        return packed

    def split(self, fused: Sequence[tf.Tensor], here: bool = False) -> list[tf.Tensor]:
        """The tensors of which `fuse` has made these, on the devices of the groups, or `here`, on the caller's."""
        tensors: list = [None] * len(self._shapes)
        for (device, numbers), together in zip(self.groups, fused, strict=True):
            with contextlib.nullcontext() if here else tf.device(device):
                for n, tensor in zip(numbers, self._split_group(together, numbers), strict=True):
                    tensors[n] = tensor
        return tensors

    def _split_group(self, fused: tf.Tensor, numbers: Sequence[int]) -> list[tf.Tensor]:
        """The tensors of one group, on the device of the caller."""
        if len(numbers) == 1:
            return [fused]
        shapes = [self._shapes[n] for n in numbers]
        parts = tf.split(fused, [s.num_elements() for s in shapes])
        return [tf.reshape(p, s) for p, s in zip(parts, shapes, strict=True)]


class FusedTransfer:
    """Fetches the values of variables, or sends tensors of their shapes to where they are, to be unpacked there.

    Args:
      variables: built Keras variables.
      fused_bytes: the largest variable that is fused with others.
    """

    def __init__(self, variables: Sequence[keras.Variable], fused_bytes: int):
        self._variables = list(variables)
        values = [variable.value for variable in self._variables]
        self._fusion = Fusion([(v.device, v.dtype, v.shape) for v in values], fused_bytes)

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables, in the order in which they were given."""
        return self._variables

    def fetch(self) -> list[tf.Tensor]:
        """The variables' values, on the device of the caller."""
        return self.unpack_here(self.pack())

    def pack(self) -> list[tf.Tensor]:
        """The variables' values as few tensors, on the variables' devices."""
        return self._fusion.pack(lambda number: tf.convert_to_tensor(self._variables[number].value))

    def unpack_here(self, packed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The values of which `pack` has made these, on the device of the caller."""
        return self._fusion.split(packed, here=True)

    def send(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors, one for each variable, on the variables' devices, where `unpack` makes them of what returns."""
        sent = []
        for (device, _), fused in zip(self._fusion.groups, self._fusion.fuse(tensors), strict=True):
            with tf.device(device):
                sent.append(tf.identity(fused))  # also one that is alone is to be there, for those that wait for it
        return sent

    def unpack(self, sent: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors that were sent, on the variables' devices.

        In the function of the server that uses them: what is made there it may overwrite with what it computes.
        """
        return self._fusion.split(sent)


def nbytes(variable: keras.Variable) -> int:
    """The size of a variable in bytes."""
    return variable.value.shape.num_elements() * variable.value.dtype.size


def _fuse(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)
