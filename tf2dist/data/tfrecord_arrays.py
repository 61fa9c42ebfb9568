"""Reads whole TFRecord files of images into NumPy arrays."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tf2dist.data.errors import DataError, op_error_message
from tf2dist.data.local_copies import local_path

if TYPE_CHECKING:
    import numpy as np

BUFFER_SIZE = 1 << 20  # bytes read at a time


def read_arrays(files: Sequence[str], parse: Callable[..., Any], expected: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Reads all records, file after file: images u8[n, 28, 28], labels i64[n].

    Args:
      parse: TensorFlow function from a batch of serialized examples string[b] to images and labels. (Parsing one
        record at a time takes twice as long.)
      expected: what the files should contain, for the error message.

    Raises:
      DataError: they cannot be read.
    """
    import numpy as np
    import tensorflow as tf

    from tf2dist.input.without_autotune import without_autotune

    with tf.device("/cpu:0"):
        records = tf.data.TFRecordDataset([local_path(file) for file in files], buffer_size=BUFFER_SIZE).batch(1000)
        batches = without_autotune(records.map(parse, num_parallel_calls=tf.data.AUTOTUNE))
        try:
            images, labels = zip(*batches.as_numpy_iterator(), strict=True)
        except tf.errors.OpError as error:
            raise DataError(f"{', '.join(files)} cannot be read{expected}: {op_error_message(error)}") from None
        except UnicodeDecodeError:  # in the message of TensorFlow's error, which shows the record
            raise DataError(f"{', '.join(files)} cannot be read{expected}: a record is no tf.train.Example") from None
    return np.concatenate(images), np.concatenate(labels)
