"""MNIST and its drop-in replacements as tensorflow-datasets prepares them: `<root>/<name>/<version>/`.

Reads them without tensorflow-datasets, whose import and builder take longer than the reading. Checking the files
needs no TensorFlow either.
"""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

import json
import os
import re
from typing import Any

from tf2dist.data.errors import DataError, StoreDataError
from tf2dist.data.tfrecord_arrays import read_arrays
from tf2dist.data.tfrecord_framing import count_records
from tf2dist.system import files

SPLITS = ("train", "test")


def find(name: str, root: str) -> str | None:
    """Returns the directory of a data set's newest version under `root`, checked; None when there is none.

    Raises:
        DataError: it exists but cannot be used; says why.
    """
    home = os.path.join(root, name)
    try:
        # Only finished versions have such a name: one still being made is called `incomplete...`.
        versions = [entry for entry in files.list_names(home) if re.fullmatch(r"\d+\.\d+\.\d+", entry)]
    except files.NoObjectError:
        return None
    except files.StoreError as error:
        raise StoreDataError(str(error)) from None
    except OSError:
        return None
    if not versions:
        return None
    directory = os.path.join(home, max(versions, key=lambda version: [int(part) for part in version.split(".")]))
    shard_files(directory)
    return directory


def shard_files(directory: str) -> dict[str, list[str]]:
    """Returns the files of each split, in order; checks that all exist and are complete.

    Raises:
        DataError: names the file that is missing, truncated or wrong.
    """
    again = f"remove {directory} to have it prepared again"
    info, features = (os.path.join(directory, name) for name in ("dataset_info.json", "features.json"))
    for path in (info, features):
        if not files.is_file(path):
            raise DataError(f"{path} is missing; {again}")
    try:
        expected = _expected_shards(info)
    except files.StoreError as error:
        raise StoreDataError(str(error)) from None
    except (AttributeError, LookupError, OSError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"{info} is not what tensorflow-datasets writes for MNIST ({error!r}); {again}") from None
    for lengths in expected.values():
        for name, length in lengths:
            path = os.path.join(directory, name)
            if not files.is_file(path):
                raise DataError(f"{path} is missing; {again}")
            if length and (found := count_records(path)) != length:
                raise DataError(f"{path} holds {found:,} records, but dataset_info.json says {length:,}; {again}")
    # tensorflow-datasets leaves a shard of no records empty, which `count_records` would refuse.
    return {split: [os.path.join(directory, n) for n, length in expected[split] if length] for split in SPLITS}


def _expected_shards(info: str) -> dict[str, list[tuple[str, int]]]:
    """Returns file names and record counts by split, from dataset_info.json."""
    with files.open_text(info) as file:
        about = json.load(file)
    if about.get("fileFormat", "tfrecord") != "tfrecord":
        raise ValueError(f"fileFormat is {about['fileFormat']}, not tfrecord")
    splits = {split["name"]: split for split in about["splits"]}
    expected = {}
    for name in SPLITS:
        lengths = [int(length) for length in splits[name]["shardLengths"]]
        template = splits[name].get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        expected[name] = [
            (
                _filled(
                    template,
                    DATASET=about["name"],
                    SPLIT=name,
                    FILEFORMAT="tfrecord",
                    SHARD_X_OF_Y=f"{index:05d}-of-{len(lengths):05d}",
                ),
                length,
            )
            for index, length in enumerate(lengths)
        ]
        if not sum(lengths):
            raise ValueError(f"split {name} has no records")
    return expected


def _filled(template: str, **parts: str) -> str:
    """Returns the template with the parts in their places, and nothing else that `str.format` could be told to do."""
    return re.sub(r"\{(\w+)\}", lambda place: parts[place[1]], template)


def load(directory: str):
    """Reads a prepared data set, in the order of its files.

    Returns:
        (images u8[n, 28, 28], labels i64[n]) twice: train, test.

    Raises:
        DataError: a file is missing, truncated or damaged, or holds something else.
    """
    shards = shard_files(directory)
    return _read_images(shards["train"]), _read_images(shards["test"])


def _read_images(paths: list[str]):
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def decode(records: Any) -> tuple[Any, Any]:
        batch = tf.io.parse_example(records, features)
        image = tf.TensorSpec([28, 28, 1], tf.uint8)
        images = tf.map_fn(lambda png: tf.io.decode_png(png, 1), batch["image"], fn_output_signature=image)
        return tf.squeeze(images, -1), batch["label"]  # u8[b, 28, 28], i64[b]

    return read_arrays(paths, decode, " as 28x28 images")
