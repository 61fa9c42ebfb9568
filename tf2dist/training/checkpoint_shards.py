"""Files of variables that the task writes, and reads, that has them: each parameter server its own.

Nothing passes through the coordinator, so that a model may be larger than the memory of any one host. The files are
those of TensorFlow (`tf.train.load_checkpoint` reads them), with a checksum for each variable.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf2dist.compat.executor_per_thread import in_own_executor

_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)

Shards = list[list[int]]  # the numbers of the variables in each file, counted from 0


class ElsewhereError(OSError):
    """A server does not see the disk that this process sees."""


def write_shards(values: Sequence[tf.Tensor], directory: str) -> Shards:
    """Has each task write the tensors that are on it; may be called in any thread.

    Args:
      values: of all variables, in their order.
      directory: exists; all tasks see it by this path.

    Raises:
      OSError: they cannot be written, or not seen from here.
      tf.errors.OpError: a task is lost.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for number, value in enumerate(values):
        places[_task(value.device)].append(number)
    shards = [numbers for _, numbers in sorted(places.items())]
    with in_own_executor():
        for shard, (task, numbers) in enumerate(sorted(places.items())):
            prefix = os.path.join(os.path.abspath(directory), prefix_of(shard, len(shards)))
            try:
                with tf.device(values[numbers[0]].device):
                    tf.raw_ops.SaveV2(
                        prefix=prefix, tensor_names=[str(number) for number in numbers],
                        shape_and_slices=[""] * len(numbers), tensors=[values[number] for number in numbers],
                    )  # fmt: skip
            except _LOST:
                raise
            except tf.errors.OpError as error:
                raise OSError(f"{task or 'this process'}: {error.message.partition(chr(10))[0]}") from None
            if not os.path.exists(f"{prefix}.index"):
                raise ElsewhereError(
                    f"{task} has written to a disk of its own: all share the directory of sharded=True"
                )
    return shards


def check_shards(shards: Any, variables: int) -> None:
    """Raises ValueError unless these are shards of so many variables at least."""
    numbers = sorted(number for numbers in shards for number in numbers)
    if numbers != [*range(len(numbers))] or len(numbers) < variables:
        raise ValueError(f"its files do not hold {variables} variables, each once")


def read_shards(
    variables: Sequence[keras.Variable], shards: Shards, directory: str, *, assign: bool, here: bool = False
) -> None:
    """Has each task read its variables, one by one.

    Args:
      variables: in the order in which they were written, on these tasks or others; the first of them are enough.
      shards: what `write_shards` has returned.
      directory: what was given to it.
      assign: are the variables to have these values? If not, they are read to see that they are whole.
      here: is this process to read those that a task does not see?

    Raises:
      tf.errors.OpError: a file is damaged, missing or cannot be read.
    """
    with in_own_executor():
        for shard, numbers in enumerate(shards):
            prefix = os.path.join(os.path.abspath(directory), prefix_of(shard, len(shards)))
            for number in numbers:
                if number >= len(variables):
                    continue
                variable = variables[number]
                try:
                    with tf.device(_host(variable.value.device)):
                        value = _restore(prefix, number, variable)
                except ElsewhereError:
                    if not here:
                        raise
                    with tf.device("/cpu:0"):
                        value = _restore(prefix, number, variable)
                if assign:
                    with tf.device(variable.value.device):
                        variable.assign(value)


def _restore(prefix: str, number: int, variable: keras.Variable) -> tf.Tensor:
    """The value of a variable, on the device in scope."""
    dtype = tf.as_dtype(variable.dtype)
    try:
        return tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[str(number)], shape_and_slices=[""], dtypes=[dtype])[0]
    except tf.errors.NotFoundError:
        files = [f"{prefix}.index", f"{prefix}.data-00000-of-00001"]
        task = _task(variable.value.device)
        if task and all(os.path.exists(path) for path in files):
            raise ElsewhereError(f"{task} does not see it: all share the directory of sharded=True") from None
        raise


def prefix_of(shard: int, count: int) -> str:
    """The name of the files of one of `count` shards, up to what TensorFlow adds."""
    return f"variables-{shard}-of-{count}"


def _host(device: str) -> str:
    """The CPU of a device's host: GPUs have no kernels that read files."""
    found: Any = tf.DeviceSpec.from_string(device or "")
    return found.replace(device_type="CPU", device_index=0).to_string()


def _task(device: str) -> str:
    """The task of a device, such as "ps 1"; "" for that of this process."""
    found: Any = tf.DeviceSpec.from_string(device or "")
    return f"{found.job} {found.task}" if found.job not in (None, "localhost") else ""
