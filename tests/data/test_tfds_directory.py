import json

import numpy as np
import pytest

from tf2dist.data import tfds_directory
from tf2dist.data.errors import DataError


def test_loads_all_shards_in_order(tmp_path, prepare):
    directory, arrays = prepare(tmp_path, lengths=((7, 0, 5, 1100), (3, 1)))
    assert tfds_directory.find("mnist", str(tmp_path)) == str(directory)
    for (images, labels), (right_images, right_labels) in zip(tfds_directory.load(str(directory)), arrays, strict=True):
        assert images.dtype == np.uint8
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(images, right_images)
        np.testing.assert_array_equal(labels, right_labels)


@pytest.mark.slow
def test_real_mnist(real_mnist):
    (images, labels), (test_images, test_labels) = tfds_directory.load(tfds_directory.find("mnist", real_mnist))
    assert images.shape == (60_000, 28, 28)
    assert test_images.shape == (10_000, 28, 28)
    # As published with the data set.
    assert np.bincount(labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert round(float(images.mean() / 255), 4) == 0.1307
    assert round(float(images.std() / 255), 4) == 0.3081


def test_newest_finished_version(tmp_path, prepare):
    prepare(tmp_path, version="3.0.9")
    newest, _ = prepare(tmp_path, version="3.0.10")
    prepare(tmp_path, version="incomplete.ABCDEF_3.0.11")
    assert tfds_directory.find("mnist", str(tmp_path)) == str(newest)


def test_not_there(tmp_path):
    assert tfds_directory.find("mnist", str(tmp_path)) is None
    assert tfds_directory.find("mnist", str(tmp_path / "absent")) is None
    (tmp_path / "mnist" / "incomplete.ABCDEF_3.0.1").mkdir(parents=True)
    assert tfds_directory.find("mnist", str(tmp_path)) is None


@pytest.mark.parametrize(
    "name",
    ["dataset_info.json", "features.json", "mnist-train.tfrecord-00001-of-00002", "mnist-test.tfrecord-00000-of-00001"],
)
def test_missing_file(tmp_path, prepare, name):
    directory, _ = prepare(tmp_path)
    (directory / name).unlink()
    with pytest.raises(DataError, match=f"^{directory / name} is missing; remove {directory} to"):
        tfds_directory.find("mnist", str(tmp_path))


def test_truncated_shard(tmp_path, prepare):
    directory, _ = prepare(tmp_path)
    shard = directory / "mnist-train.tfrecord-00001-of-00002"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"^{shard} is truncated: .* inside record 5,"):
        tfds_directory.find("mnist", str(tmp_path))
    with pytest.raises(DataError, match="is truncated"):  # also in a process that was only told the directory
        tfds_directory.load(str(directory))


def test_shard_that_ends_between_records(tmp_path, prepare):
    directory, _ = prepare(tmp_path)
    prepare(tmp_path / "other", lengths=((7, 3), (4,)))
    name = "mnist-train.tfrecord-00001-of-00002"
    (directory / name).write_bytes((tmp_path / "other/mnist/3.0.1" / name).read_bytes())
    with pytest.raises(DataError, match=f"{name} holds 3 records, but dataset_info.json says 5;"):
        tfds_directory.find("mnist", str(tmp_path))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fileFormat": "array_record"}, "fileFormat is array_record, not tfrecord"),
        ({"splits": [{"name": "train", "shardLengths": ["7", "5"]}]}, "KeyError"),
        ({"splits": [{"name": name, "shardLengths": []} for name in ("train", "test")]}, "split train has no records"),
        ({"splits": None}, "TypeError"),
    ],
)
def test_unexpected_info(tmp_path, prepare, change, reason):
    directory, _ = prepare(tmp_path)
    info = directory / "dataset_info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | change))
    with pytest.raises(DataError, match=f"^{info} is not what tensorflow-datasets writes for MNIST .*{reason}"):
        tfds_directory.find("mnist", str(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{", '"text"'])
def test_info_that_is_no_info(tmp_path, prepare, text):
    directory, _ = prepare(tmp_path)
    (directory / "dataset_info.json").write_text(text)
    with pytest.raises(DataError, match="is not what tensorflow-datasets writes"):
        tfds_directory.find("mnist", str(tmp_path))


def test_damaged_payload(tmp_path, prepare):
    directory, _ = prepare(tmp_path)
    shard = directory / "mnist-train.tfrecord-00000-of-00002"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match=r"cannot be read as 28x28 images: .*corrupted record") as error:
        tfds_directory.load(tfds_directory.find("mnist", str(tmp_path)))
    assert "\n" not in str(error.value)
