"""Reads TFRecord files of images, as arrays or as a `tf.data.Dataset` of batches."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tf2dist.data.local_copies import local_path
from tf2dist.data.tfrecord.image_features import parse
from tf2dist.data.tfrecord_arrays import BUFFER_SIZE, read_arrays
from tf2dist.data.tfrecord_framing import Path, count_records, path_list
from tf2dist.system import files

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf


def read(
    paths: Path | Iterable[Path], batch_size: int, *, shuffle: int = 0, seed: int | None = None
) -> tf.data.Dataset[Any]:
    """Returns batches of (images f32[b, 28, 28] in 0..1, labels i64[b]), one pass over all files.

    The last batch may be smaller. The pipeline consists of TensorFlow operations only, so it also runs in a
    `tf.function` on a remote worker whose host sees the same paths. Not so of URLs: this process fetches each file now
    (`tf2dist.data.local_copies`), and the pipeline runs in it alone. Under `ps` that is the coordinator.

    Args:
        paths: the files, or their URLs; their records are interleaved, in a fixed order unless shuffled.
        batch_size: examples a batch.
        shuffle: size of the shuffle buffer in records, reshuffled each pass; 0 does not shuffle.
        seed: makes the orders reproducible.

    Raises:
        DataError: as `count_records`, at once.
        tf.errors.InvalidArgumentError: a record lacks these features; when it is read.
    """
    import tensorflow as tf

    names = path_list(paths)
    batches = -(-count_records(names) // batch_size)

    copies = {name.encode(): local_path(name).encode() for name in names}

    def path_of(name: tf.Tensor) -> tf.Tensor:
        if not any(map(files.is_url, names)):
            return name
        # By a call of Python, so that no process reads the pipeline but this one, which has the copies.
        path: tf.Tensor = tf.numpy_function(copies.__getitem__, [name], tf.string)
        return tf.ensure_shape(path, [])

    records = tf.data.Dataset.from_tensor_slices(names).interleave(
        lambda name: tf.data.TFRecordDataset(path_of(name), buffer_size=BUFFER_SIZE),
        cycle_length=len(names),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    if shuffle:
        records = records.shuffle(shuffle, seed)

    def scaled(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = parse(batch)
        return tf.cast(images, tf.float32) / 255, labels

    parsed = records.batch(batch_size).map(scaled, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    # Synchronous strategies shard their input by files by default: shards are uneven, and fewer files than workers are
    # an error.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    parsed = parsed.apply(tf.data.experimental.assert_cardinality(batches)).with_options(options)
    return parsed.prefetch(tf.data.AUTOTUNE)


def load(paths: Path | Iterable[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Reads all records, file after file: images u8[n, 28, 28], labels i64[n]. Raises DataError."""
    names = path_list(paths)
    count_records(names)
    return read_arrays(names, parse)
