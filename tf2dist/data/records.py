"""TFRecord files of images, whole, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tf2dist.data.errors import DataError, plain

if TYPE_CHECKING:
    import numpy as np

BUFFER = 1 << 20  # bytes read at a time


def arrays(files: Sequence[str], parse: Callable, wanted: str = "") -> tuple[np.ndarray, np.ndarray]:
    """All records, file after file: images u8[n, 28, 28], labels i64[n].

    Args:
      parse: TensorFlow function from serialized examples string[b] to images and labels. A batch at a time: record by
        record takes twice as long.
      wanted: what the files should be, for the error.

    Raises:
      DataError: they cannot be read.
    """
    import numpy as np
    import tensorflow as tf

    from tf2dist.untuned import untuned

    with tf.device("/cpu:0"):
        records = tf.data.TFRecordDataset(files, buffer_size=BUFFER).batch(1000)
        batches = untuned(records.map(parse, num_parallel_calls=tf.data.AUTOTUNE))
        try:
            images, labels = zip(*batches.as_numpy_iterator(), strict=True)
        except tf.errors.OpError as error:
            raise DataError(f"{', '.join(files)} cannot be read{wanted}: {plain(error)}") from None
    return np.concatenate(images), np.concatenate(labels)
