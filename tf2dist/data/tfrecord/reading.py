"""TFRecord files as arrays, or as a stream of batches."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tf2dist.data.framing import Path, count, listed
from tf2dist.data.records import BUFFER, arrays
from tf2dist.data.tfrecord.form import CLASSES, PIXELS, SIDE

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf


def read(
    paths: Path | Iterable[Path], batch_size: int, *, shuffle: int = 0, seed: int | None = None
) -> "tf.data.Dataset":
    """Batches of (images f32[b, 28, 28] in 0..1, labels i64[b]), once through all files; the last may be smaller.

    The pipeline is all TensorFlow operations, so it also runs inside a `tf.function` on a remote worker, if that
    host sees the same paths.

    Args:
        paths: the files, whose records alternate (a fixed order, unless shuffled).
        batch_size: examples a batch.
        shuffle: size of the shuffle buffer in records; every pass has another order. 0: the files' order.
        seed: makes the orders of the passes the same each time the dataset is made.

    Raises:
        DataError: as `count`, now.
        tf.errors.InvalidArgumentError: a record is not of this form; when it is read.
    """
    import tensorflow as tf

    names = listed(paths)
    batches = -(-count(names) // batch_size)
    records = tf.data.Dataset.from_tensor_slices(names).interleave(
        lambda name: tf.data.TFRecordDataset(name, buffer_size=BUFFER),
        cycle_length=len(names),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    if shuffle:
        records = records.shuffle(shuffle, seed)

    def scaled(batch):
        images, labels = _parse(batch)
        return tf.cast(images, tf.float32) / 255, labels

    parsed = records.batch(batch_size).map(scaled, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    # A synchronous strategy shards its input, and by files unless told otherwise: uneven shares, and an error when
    # there are fewer files than workers.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    parsed = parsed.apply(tf.data.experimental.assert_cardinality(batches)).with_options(options)
    return parsed.prefetch(tf.data.AUTOTUNE)


def load(paths: Path | Iterable[Path]) -> "tuple[np.ndarray, np.ndarray]":
    """All records, file after file: images u8[n, 28, 28], labels i64[n]. Raises DataError."""
    names = listed(paths)
    count(names)
    return arrays(names, _parse)


def _parse(records: "tf.Tensor"):
    """Serialized examples string[b] -> images u8[b, 28, 28], labels i64[b]."""
    import tensorflow as tf

    number = tf.io.FixedLenFeature([], tf.int64)
    form = {"image_raw": tf.io.FixedLenFeature([], tf.string), "pixels": number, "label": number}
    batch: dict[str, Any] = tf.io.parse_example(records, form)  # Any: dense tensors, all of them [b]
    raw, pixels, labels = batch["image_raw"], batch["pixels"], batch["label"]
    sizes = tf.strings.length(raw)

    def check(good, message, values):
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
