"""Writes images to TFRecord files."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf2dist.data.errors import DataError, op_error_message
from tf2dist.data.tfrecord.image_features import CLASSES, PIXELS, SIDE
from tf2dist.system.atomic_files import replacing

if TYPE_CHECKING:
    import numpy as np


def write(path: str, images: "np.ndarray", labels: "np.ndarray") -> None:
    """Writes images u8[n, 28, 28] and labels (integers 0 to 9)[n]; the file appears complete or not at all.

    Raises:
        DataError: the arrays have other shapes, dtypes or labels.
        OSError: the file could not be written, for example because the disk is full.
    """
    with replacing(path) as [part]:
        write_in_place(part, images, labels)


def write_in_place(path: str, images: "np.ndarray", labels: "np.ndarray") -> None:
    """Writes as `write` does, but without a temporary file: for use inside `replacing`."""
    import numpy as np
    import tensorflow as tf

    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (SIDE, SIDE) or not len(images):
        raise DataError(f"images are {images.dtype}{list(images.shape)}; they should be uint8[n, {SIDE}, {SIDE}]")
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1]:
        raise DataError(f"labels are {labels.dtype}{list(labels.shape)}; they should be int64[{len(images)}]")
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise DataError(f"labels go from {labels.min()} to {labels.max()}; they should be 0 to {CLASSES - 1}")
    try:
        with tf.io.TFRecordWriter(path) as writer:
            for record in _records(images, labels):
                writer.write(record)
    except tf.errors.OpError as error:
        reason = op_error_message(error).removeprefix(f"{path}; ")
        raise OSError(f"{path} could not be written: {reason}") from None


def _records(images: "np.ndarray", labels: "np.ndarray") -> Iterator[bytes]:
    from tensorflow.train import BytesList, Example, Feature, Features, Int64List

    pixels = Feature(int64_list=Int64List(value=[PIXELS]))
    for image, label in zip(images, labels, strict=True):
        feature = {
            "image_raw": Feature(bytes_list=BytesList(value=[image.tobytes()])),
            "pixels": pixels,
            "label": Feature(int64_list=Int64List(value=[int(label)])),
        }
        # Deterministic, so that the same images always make the same file.
        yield Example(features=Features(feature=feature)).SerializeToString(deterministic=True)
