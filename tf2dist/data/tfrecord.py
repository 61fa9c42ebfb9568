"""Labelled 28×28 images as TFRecord files, in the form that TensorFlow 1's MNIST examples used.

One `tf.train.Example` an image, with the features `image_raw` (bytes: u8[784], row by row), `pixels` (int64: 784)
and `label` (int64: 0 to 9). `python -m tf2dist.data.tfrecord --help` writes such files from any data set.
"""

import glob
import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tf2dist.atomic import replacing
from tf2dist.data.errors import DataError, plain
from tf2dist.data.framing import Path, count, first, listed

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

__all__ = ["check_form", "count", "files", "fill", "load", "read", "write"]

CLASSES = 10
SIDE = 28
PIXELS = SIDE * SIDE
BUFFER = 1 << 20  # bytes read at a time


def files(path: str) -> tuple[list[str], list[str]]:
    """The training files and the test files that a path stands for; only their names are looked at.

    A directory: `train.tfrecords` or else `train*.tfrecord*`, with all shards if they are numbered
    `-00000-of-00003`; and likewise `test` or else `validation`. A file: itself, and beside it the one whose name
    has `test` for `train`.

    Raises:
        DataError: a part or a shard is missing, and what was looked for.
    """
    if os.path.isdir(path):
        train, test = _part(path, "train"), _part(path, "test") or _part(path, "validation")
        if not train:
            raise DataError(f"{path} has no training part: no file is called train*.tfrecord*")
        if not test:
            raise DataError(f"{path} has no test part: no file is called test*.tfrecord* or validation*.tfrecord*")
        return train, test
    folder, name = os.path.split(path)
    before, found, after = name.rpartition("train")
    if not found:
        raise DataError(f"{path} has no `train` in its name, so its test part cannot be found; name their directory")
    test = os.path.join(folder, f"{before}test{after}")
    if not os.path.exists(test):
        raise DataError(f"{path} has no test part: there is no {test}")
    return [path], [test]


def _part(folder: str, name: str) -> list[str]:
    whole = os.path.join(folder, f"{name}.tfrecords")
    if os.path.exists(whole):
        return [whole]
    found = sorted(glob.glob(os.path.join(glob.escape(folder), f"{name}*.tfrecord*")))
    for path in found:
        if numbered := re.search(r"-(\d{5})-of-(\d{5})", path):
            for shard in range(int(numbered[2])):
                other = f"{path[: numbered.start(1)]}{shard:05d}{path[numbered.end(1) :]}"
                if other not in found:
                    raise DataError(f"{other} is missing beside {path}")
    return found


def check_form(path: Path) -> None:
    """Raises DataError unless a file's first record has this module's features. Needs no TensorFlow."""
    record = first(path)
    missing = [name for name in ("image_raw", "pixels", "label") if name.encode() not in record]
    if missing:
        raise DataError(f"{path} holds other records: the first lacks {', '.join(missing)}; see tf2dist.data.tfrecord")


def write(path: str, images: "np.ndarray", labels: "np.ndarray") -> None:
    """Writes images u8[n, 28, 28] and labels (integers 0 to 9)[n]; the file is there complete or not at all.

    Raises:
        DataError: the arrays are not such.
        OSError: the file could not be written, for example because the disk is full.
    """
    with replacing(path) as [part]:
        fill(part, images, labels)


def fill(path: str, images: "np.ndarray", labels: "np.ndarray") -> None:
    """Writes as `write` does, but in place: for use inside `replacing`."""
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
        reason = plain(error).removeprefix(f"{path}; ")
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
    import numpy as np
    import tensorflow as tf

    names = listed(paths)
    count(names)
    with tf.device("/cpu:0"):
        records = tf.data.TFRecordDataset(names, buffer_size=BUFFER).batch(1000)
        dataset = records.map(_parse, num_parallel_calls=tf.data.AUTOTUNE)
        try:
            images, labels = zip(*dataset.as_numpy_iterator(), strict=True)
        except tf.errors.OpError as error:
            raise DataError(f"{', '.join(names)} cannot be read: {plain(error)}") from None
    return np.concatenate(images), np.concatenate(labels)


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


if __name__ == "__main__":
    from tf2dist.data.convert import main

    raise SystemExit(main())
