"""The features of a record of an image: checked, and parsed to images and labels."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf2dist.data.errors import DataError
from tf2dist.data.tfrecord_framing import Path, first_record

if TYPE_CHECKING:
    import tensorflow as tf

CLASSES = 10
SIDE = 28
PIXELS = SIDE * SIDE


def check_features(path: Path) -> None:
    """Raises DataError unless a file's first record has these features. Needs no TensorFlow."""
    record = first_record(path)
    missing = [name for name in ("image_raw", "pixels", "label") if name.encode() not in record]
    if missing:
        raise DataError(f"{path} holds other records: the first lacks {', '.join(missing)}; see tf2dist.data.tfrecord")


def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Parses serialized examples string[b] to images u8[b, 28, 28], labels i64[b]."""
    import tensorflow as tf

    number = tf.io.FixedLenFeature([], tf.int64)
    form = {"image_raw": tf.io.FixedLenFeature([], tf.string), "pixels": number, "label": number}
    batch: dict[str, Any] = tf.io.parse_example(records, form)  # Any: dense tensors, all of them [b]
    raw, pixels, labels = batch["image_raw"], batch["pixels"], batch["label"]
    sizes = tf.strings.length(raw)

    def check(good: Any, message: str, values: tf.Tensor) -> Any:
        return tf.debugging.Assert(tf.reduce_all(good), [message, tf.boolean_mask(values, ~good)], summarize=5)

    checks = [
        check(pixels == PIXELS, f"TFRecord feature `pixels` should be {PIXELS}; found", pixels),
        check(sizes == PIXELS, f"TFRecord feature `image_raw` should be {PIXELS} bytes long; found", sizes),
        check(
            (labels >= 0) & (labels < CLASSES),
            f"TFRecord feature `label` should be 0 to {CLASSES - 1}; found",
            labels,
        ),
    ]
    with tf.control_dependencies(checks):  # before decode_raw, whose own errors say less
        images = tf.io.decode_raw(raw, tf.uint8)  # u8[b, 784]
    return tf.reshape(images, [-1, SIDE, SIDE]), labels
