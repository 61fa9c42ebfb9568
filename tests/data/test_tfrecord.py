import os
import resource

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import every_third
from tf2dist.data import tfrecord
from tf2dist.data.errors import DataError

GOOD = {"image_raw": bytes(784), "pixels": 784, "label": 3}


def example(values):
    feature = {}
    for name, value in values.items():
        if isinstance(value, bytes):
            feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        else:
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def raw_file(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def collect(dataset):
    images, labels = zip(*dataset.as_numpy_iterator(), strict=True)
    return np.concatenate(images), np.concatenate(labels)


@pytest.fixture
def two(tmp_path, some):
    """Two files of 30 and 50 records, and what is in them."""
    paths, parts = [str(tmp_path / "a"), str(tmp_path / "b")], [some(30, 1), some(50, 2)]
    for path, part in zip(paths, parts, strict=True):
        tfrecord.write(path, *part)
    return paths, parts


def test_round_trip(two):
    paths, parts = two
    images, labels = tfrecord.load(paths)
    assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
    np.testing.assert_array_equal(images, np.concatenate([part[0] for part in parts]))
    np.testing.assert_array_equal(labels, np.concatenate([part[1] for part in parts]))


def test_the_form(two):
    paths, parts = two
    record = next(iter(tf.data.TFRecordDataset(paths[0]).as_numpy_iterator()))
    features = tf.train.Example.FromString(record).features.feature
    assert set(features) == {"image_raw", "pixels", "label"}
    assert features["image_raw"].bytes_list.value[:] == [parts[0][0][0].tobytes()]
    assert features["pixels"].int64_list.value[:] == [784]
    assert features["label"].int64_list.value[:] == [parts[0][1][0]]


def test_same_images_same_bytes(tmp_path, some):
    for name in "ab":
        tfrecord.write(str(tmp_path / name), *some(20))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_read_one_file_in_order(two):
    paths, [(right_images, right_labels), _] = two
    dataset = tfrecord.read(paths[0], 8)
    assert dataset.element_spec == (
        tf.TensorSpec([None, 28, 28], tf.float32),
        tf.TensorSpec([None], tf.int64),
    )
    assert dataset.cardinality().numpy() == 4
    assert [len(labels) for _, labels in dataset] == [8, 8, 8, 6]
    images, labels = collect(dataset)
    np.testing.assert_array_equal(images, right_images.astype(np.float32) / 255)
    np.testing.assert_array_equal(labels, right_labels)
    assert images.max() == 1.0


def test_read_several_files_alternating(two):
    paths, parts = two
    images, _ = collect(tfrecord.read(paths, 7))
    order = [part[0][i] for i in range(50) for part in parts if i < len(part[0])]
    np.testing.assert_array_equal(np.rint(images * 255), order)


@pytest.mark.slow
def test_shuffle(two):
    paths, parts = two

    def passes(seed):
        dataset = tfrecord.read(paths, 80, shuffle=100, seed=seed)
        return [collect(dataset)[0] for _ in range(2)]

    first, second = passes(7)
    assert not np.array_equal(first, second)
    for again, before in zip(passes(7), (first, second), strict=True):
        np.testing.assert_array_equal(again, before)
    assert not np.array_equal(passes(8)[0], first)
    everything = np.concatenate([part[0] for part in parts])
    for one in (first, second):
        np.testing.assert_array_equal(np.unique(np.rint(one * 255), axis=0), np.unique(everything, axis=0))


@pytest.mark.slow
def test_read_runs_without_python(two):
    """A remote worker has no Python to call back into."""
    paths, _ = two

    @tf.function
    def total():
        return tfrecord.read(paths, 8, shuffle=10).reduce(
            tf.constant(0, tf.int64), lambda sum, batch: sum + tf.size(batch[1], tf.int64)
        )

    assert total().numpy() == 80
    graph = total.get_concrete_function().graph.as_graph_def()
    ops = {node.op for function in graph.library.function for node in function.node_def} | {n.op for n in graph.node}
    assert "DecodeRaw" in ops  # it is the whole pipeline that was looked at
    assert not [op for op in ops if "PyFunc" in op]


@pytest.mark.parametrize("files", [1, 2])
def test_workers_get_even_shares(two, files):
    """One file or files of uneven sizes: tf.distribute would share whole files, or fail."""
    from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset

    paths, parts = two
    dataset = tfrecord.read(paths[-files:], 5)
    shares = [collect(_AutoShardDataset(dataset, 2, index)) for index in range(2)]
    assert len(shares[0][1]) == len(shares[1][1]) == sum(len(part[1]) for part in parts[-files:]) / 2
    everything = np.concatenate([part[0] for part in parts[-files:]])
    got = np.rint(np.concatenate([images for images, _ in shares]) * 255)
    np.testing.assert_array_equal(np.unique(got, axis=0), np.unique(everything, axis=0))


@every_third(
    ("change", "reason"),
    [
        ({"pixels": 100}, "`pixels` should be 784; found] [100]"),
        ({"image_raw": bytes(783)}, "`image_raw` should be 784 bytes long; found] [783]"),
        ({"label": 10}, "`label` should be 0 to 9; found] [10]"),
        ({"label": -1}, "`label` should be 0 to 9; found] [-1]"),
        ({"label": b"3"}, "label"),
    ],
)
@pytest.mark.parametrize("others", [0, 3])
def test_wrong_values(tmp_path, change, reason, others):
    path = raw_file(tmp_path / "file", [example(GOOD)] * others + [example(GOOD | change)])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        collect(tfrecord.read(path, 10))
    assert reason in str(error.value)
    with pytest.raises(DataError) as error:
        tfrecord.load(path)
    assert reason in str(error.value)
    assert "{{" not in str(error.value)


@pytest.mark.parametrize("missing", list(GOOD))
def test_missing_feature(tmp_path, missing):
    path = raw_file(tmp_path / "file", [example({name: GOOD[name] for name in GOOD if name != missing})])
    with pytest.raises(DataError, match=f"the first lacks {missing};"):
        tfrecord.check_features(path)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"Feature: {missing} .*is required"):
        collect(tfrecord.read(path, 10))


def test_truncated_file_is_found_at_once(two):
    paths, _ = two
    with open(paths[1], "r+b") as file:
        file.truncate(os.path.getsize(paths[1]) - 1)
    for action in (lambda: tfrecord.read(paths, 8), lambda: tfrecord.load(paths)):
        with pytest.raises(DataError, match="b is truncated"):
            action()


@pytest.mark.parametrize(
    ("images", "labels", "reason"),
    [
        (np.zeros((2, 28, 28), np.float32), np.zeros(2, np.int64), r"images are float32\[2, 28, 28\]"),
        (np.zeros((2, 784), np.uint8), np.zeros(2, np.int64), r"images are uint8\[2, 784\]"),
        (np.zeros((2, 28, 28, 1), np.uint8), np.zeros(2, np.int64), "images are"),
        (np.zeros((0, 28, 28), np.uint8), np.zeros(0, np.int64), "images are"),
        (np.zeros((2, 28, 28), np.uint8), np.zeros(3, np.int64), r"labels are int64\[3\]; they should be int64\[2\]"),
        (np.zeros((2, 28, 28), np.uint8), np.zeros(2), "labels are float64"),
        (np.zeros((2, 28, 28), np.uint8), np.array([0, 10]), "labels go from 0 to 10; they should be 0 to 9"),
        (np.zeros((2, 28, 28), np.uint8), np.array([-1, 1]), "labels go from -1 to 1"),
    ],
)
def test_write_refuses(tmp_path, images, labels, reason):
    with pytest.raises(DataError, match=reason):
        tfrecord.write(str(tmp_path / "file"), images, labels)
    assert os.listdir(tmp_path) == []


@pytest.fixture
def small_files():
    """No file may grow over 100 kB: the nearest thing to a full disk that needs no disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk(tmp_path, some, small_files):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(OSError, match=r"could not be written: File too large"):
        tfrecord.write(str(path), *some(1000))
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


def test_write_into_no_directory(tmp_path, some):
    with pytest.raises(OSError, match=r"could not be written: No such file or directory"):
        tfrecord.write(str(tmp_path / "absent" / "file"), *some(2))


@pytest.mark.parametrize(
    ("names", "train", "test"),
    [
        (["train.tfrecords", "test.tfrecords"], [0], [1]),
        (["train.tfrecords", "train-00000-of-00009.tfrecord", "test.tfrecords"], [0], [2]),
        (["train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord", "test.tfrecord"], [0, 1], [2]),
        (["train.tfrecord-00000-of-00001", "validation-00000-of-00001.tfrecords"], [0], [1]),
        (["train_b.tfrecords", "train_a.tfrecords", "test.tfrecords", "validation.tfrecords"], [1, 0], [2]),
        (["train.tfrecords", ".train.tfrecords.0a1b2c3d.part", "test.tfrecords"], [0], [2]),
    ],
)
def test_files_of_a_directory(tmp_path, names, train, test):
    folder = tmp_path / "odd [name]*"
    folder.mkdir()
    paths = [folder / name for name in names]
    for path in paths:
        path.touch()
    expected = [str(paths[i]) for i in train], [str(paths[i]) for i in test]
    assert tfrecord.files(str(folder)) == expected


def test_file_with_its_test_part(tmp_path):
    for name in ("train-train-0.tfr", "train-test-0.tfr"):
        (tmp_path / name).touch()
    expected = [str(tmp_path / "train-train-0.tfr")], [str(tmp_path / "train-test-0.tfr")]
    assert tfrecord.files(str(tmp_path / "train-train-0.tfr")) == expected


@pytest.mark.parametrize(
    ("names", "path", "reason"),
    [
        ([], "", r"has no training part: no file is called train\*"),
        (["test.tfrecords"], "", "has no training part"),
        (["train.tfrecords"], "", r"has no test part: no file is called test\*.tfrecord\* or validation\*"),
        (["train-00000-of-00002.tfrecord", "test.tfrecords"], "", "train-00001-of-00002.tfrecord is missing beside"),
        (["train.tfrecords", "test-00001-of-00002.tfrecord"], "", "test-00000-of-00002.tfrecord is missing beside"),
        (["train.tfr"], "train.tfr", "has no test part: there is no .*test.tfr$"),
        (["mnist.tfr"], "mnist.tfr", "mnist.tfr has no `train` in its name"),
    ],
)
def test_files_that_are_not_there(tmp_path, names, path, reason):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=reason):
        tfrecord.files(str(tmp_path / path) if path else str(tmp_path))
