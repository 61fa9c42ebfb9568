"""Small data sets on disk, and a machine without a network or a home of its own."""

import json
import os
import pathlib

import numpy as np
import pytest

REAL = pathlib.Path(os.environ.get("MNIST_DIR", "~/tensorflow_datasets")).expanduser()  # holds mnist/3.0.1


@pytest.fixture
def real_mnist():
    if not (REAL / "mnist").is_dir():
        pytest.skip(f"MNIST is not prepared under {REAL}")
    return str(REAL)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home directory, no TFDS_DATA_DIR and no proxy."""
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    for name in ("TFDS_DATA_DIR", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return place


@pytest.fixture
def offline(home, monkeypatch):
    from tf2dist.data import download

    monkeypatch.setattr(download, "unreachable", lambda: "no connection to anywhere")


@pytest.fixture
def some():
    """n images u8[n, 28, 28] and labels i64[n], no two images alike."""

    def make(n, seed=0):
        random = np.random.RandomState(seed)
        return random.randint(0, 256, (n, 28, 28), np.uint8), random.randint(0, 10, n).astype(np.int64)

    return make


@pytest.fixture
def prepare(some):
    """Writes what tensorflow-datasets would; returns the version's directory and the arrays in it."""
    import tensorflow as tf

    def shard(path, images, labels):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for image, label in zip(images, labels, strict=True):
                png = tf.io.encode_png(image[..., None]).numpy()
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    def make(root, name="mnist", version="3.0.1", lengths=((7, 5), (4,)), seed=0):
        directory = pathlib.Path(root) / name / version
        directory.mkdir(parents=True)
        splits, arrays = [], []
        for split, sizes in zip(("train", "test"), lengths, strict=True):
            images, labels = some(sum(sizes), seed)
            arrays.append((images, labels))
            begin = 0
            for index, size in enumerate(sizes):
                path = directory / f"{name}-{split}.tfrecord-{index:05d}-of-{len(sizes):05d}"
                shard(path, images[begin : begin + size], labels[begin : begin + size])
                begin += size
            splits.append({"name": split, "shardLengths": [str(size) for size in sizes]})
        info = {"name": name, "version": version, "fileFormat": "tfrecord", "splits": splits}
        (directory / "dataset_info.json").write_text(json.dumps(info))
        (directory / "features.json").write_text("{}")
        return directory, arrays

    return make
