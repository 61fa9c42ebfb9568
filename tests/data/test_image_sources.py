import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from tf2dist import data
from tf2dist.data import DataError, Source, download, find, image_sources, load, tfrecord
from tf2dist.system import files


@pytest.mark.parametrize(
    "source", [Source("digits", note="ünï 'x' \"y\""), Source("mnist", "/a b/c"), Source("synthetic")]
)
def test_source_survives_json(source):
    text = source.to_json()
    assert text.isascii()
    assert "\n" not in text
    assert Source.from_json(text) == source


@pytest.mark.parametrize("text", ["", "{}", "[1]", "1", '{"name": "digits", "size": 3}', '{"name": "cifar"}'])
def test_json_of_something_else(text):
    with pytest.raises(DataError):
        Source.from_json(text)


@pytest.mark.parametrize("values", [("auto",), ("mnist",), ("tfrecord",), ("digits", "/path"), ("cifar10", "/path")])
def test_source_is_validated(values):
    with pytest.raises(DataError, match=r"^Source"):
        Source(*values)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_find_what_is_always_there(offline, name):
    assert find(name) == Source(name)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_find_prepared(offline, prepare, tmp_path, name):
    directory, arrays = prepare(tmp_path / "data", name)
    source = find(name, str(tmp_path / "data"))
    assert source == Source(name, str(directory))
    for loaded, right in zip(load(source), arrays, strict=True):
        np.testing.assert_array_equal(loaded[0], right[0])
        np.testing.assert_array_equal(loaded[1], right[1])


def test_find_looks_where_tfds_does(offline, home, prepare, tmp_path, monkeypatch):
    usual, _ = prepare(home / "tensorflow_datasets")
    assert find("mnist").path == str(usual)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "absent"))
    assert find("mnist").path == str(usual)
    other, _ = prepare(tmp_path / "other")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "other"))
    assert find("mnist").path == str(other)
    (tmp_path / "given").mkdir()
    with pytest.raises(DataError, match=f"^mnist is not prepared under {tmp_path / 'given'} and"):
        find("mnist", str(tmp_path / "given"))


def test_find_makes_relative_paths_absolute(offline, prepare, tmp_path, monkeypatch, home):
    directory, _ = prepare(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert find("mnist", "data").path == str(directory)
    (home / "link").symlink_to(tmp_path / "data")
    assert find("mnist", "~/link").path == str(home / "link" / "mnist" / "3.0.1")


@pytest.mark.parametrize("name", ["auto", "mnist", "fashion_mnist", "digits"])
def test_data_dir_that_is_no_directory(offline, tmp_path, name):
    with pytest.raises(DataError, match=f"^--data_dir={tmp_path}/x is not a directory"):
        find(name, f"{tmp_path}/x")


def test_no_network(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "a"))
    with pytest.raises(DataError) as error:
        find("mnist")
    assert str(error.value).startswith(
        f"mnist is not prepared under {tmp_path / 'a'} or {home / 'tensorflow_datasets'} and cannot be downloaded: "
        "no connection to the HTTPS proxy 127.0.0.1:1 (Connection refused); copy it"
    )
    assert not (tmp_path / "a").exists()


def test_auto_prefers_mnist(offline, prepare, tmp_path):
    directory, _ = prepare(tmp_path)
    assert find("auto", str(tmp_path)) == Source("mnist", str(directory))


def test_auto_falls_back_and_says_so(offline):
    source = find("auto")
    assert source.name == "digits"
    assert source.note.startswith("Using scikit-learn's handwritten digits, because mnist is not prepared under ")
    assert "no connection to anywhere" in source.note
    assert "\n" not in source.note


def test_auto_takes_nothing_else_where_a_store_does_not_answer(offline, monkeypatch):
    def list_names(path):
        raise files.StoreError(path, "listed", "the credentials have expired")

    monkeypatch.setattr(files, "list_names", list_names)
    monkeypatch.setenv("TFDS_DATA_DIR", "s3://bucket/tfds")
    with pytest.raises(DataError, match="s3://bucket/tfds/mnist cannot be listed: the credentials have expired"):
        find("auto")


def test_auto_says_what_is_damaged(offline, prepare, tmp_path):
    directory, _ = prepare(tmp_path)
    (directory / "mnist-test.tfrecord-00000-of-00001").unlink()
    assert "mnist-test.tfrecord-00000-of-00001 is missing" in find("auto", str(tmp_path)).note


def test_downloads_into_the_first_place(home, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(download, "unreachable", lambda: "")
    monkeypatch.setattr(download, "download", lambda name, root: asked.append((name, root)) or f"{root}/{name}/3.0.1")
    monkeypatch.setenv("TFDS_DATA_DIR", "/somewhere")
    assert find("auto") == Source("mnist", "/somewhere/mnist/3.0.1")
    assert find("fashion_mnist", str(tmp_path)) == Source("fashion_mnist", f"{tmp_path}/fashion_mnist/3.0.1")
    monkeypatch.delenv("TFDS_DATA_DIR")
    find("mnist")
    assert asked == [
        ("mnist", "/somewhere"),
        ("fashion_mnist", str(tmp_path)),
        ("mnist", f"{home}/tensorflow_datasets"),
    ]


def test_neither_name_nor_path():
    with pytest.raises(DataError, match=r"^--dataset=cifar is neither auto, mnist, .* nor an existing path$"):
        find("cifar")


@pytest.mark.slow
def test_tfrecords_by_path(tmp_path, some, monkeypatch):
    train, test = some(20, 1), some(5, 2)
    tfrecord.write(str(tmp_path / "train.tfrecords"), *train)
    tfrecord.write(str(tmp_path / "test.tfrecords"), *test)
    monkeypatch.chdir(tmp_path)
    for name, path in ((".", tmp_path), ("train.tfrecords", tmp_path / "train.tfrecords")):
        source = find(name)
        assert source == Source("tfrecord", str(path))
        for loaded, right in zip(load(source), (train, test), strict=True):
            np.testing.assert_array_equal(loaded[0], right[0])
            np.testing.assert_array_equal(loaded[1], right[1])


@pytest.mark.parametrize("part", ["train", "test"])
def test_truncated_tfrecords(tmp_path, some, part):
    for each in ("train", "test"):
        tfrecord.write(str(tmp_path / f"{each}.tfrecords"), *some(5))
    path = tmp_path / f"{part}.tfrecords"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"^{path} is truncated: .* inside record 5,"):
        find(str(tmp_path))


def test_tfrecords_of_another_form(tmp_path, prepare):
    directory, _ = prepare(tmp_path, lengths=((7,), (4,)))
    with pytest.raises(DataError, match="holds other records: the first lacks image_raw, pixels"):
        find(str(directory / "mnist-train.tfrecord-00000-of-00001"))


def test_load_where_the_files_are_not(tmp_path):
    for source in (Source("mnist", str(tmp_path / "x")), Source("tfrecord", str(tmp_path / "x" / "train.tfrecords"))):
        with pytest.raises(DataError, match=str(tmp_path / "x")):
            load(source)


def digest(parts):
    return hashlib.sha256(b"".join(array.tobytes() for part in parts for array in part)).hexdigest()[:16]


def test_digits():
    (x, y), (test_x, test_y) = parts = load(Source("digits"))
    assert (x.shape, y.shape, test_x.shape, test_y.shape) == ((1437, 28, 28), (1437,), (360, 28, 28), (360,))
    assert (x.dtype, y.dtype, x.min(), x.max()) == (np.uint8, np.int64, 0, 255)
    assert np.unique(y).tolist() == np.unique(test_y).tolist() == list(range(10))
    assert not x[:, :2].any()
    assert not x[:, :, -2:].any()
    assert digest(parts) == "590792108b124542"


def test_synthetic():
    (x, y), (test_x, test_y) = parts = load(Source("synthetic"))
    assert (x.shape, y.shape, test_x.shape, test_y.shape) == ((10_000, 28, 28), (10_000,), (2_000, 28, 28), (2_000,))
    assert (x.dtype, y.dtype) == (np.uint8, np.int64)
    assert len(np.unique(np.concatenate([x, test_x]), axis=0)) == 12_000
    assert digest(parts) == "311f1f91e30b6d61"


def accuracy(source, epochs):
    import keras

    keras.utils.set_random_seed(1)
    (x, y), test = load(source)
    layers = [
        keras.layers.Rescaling(1 / 255),
        keras.layers.Flatten(),
        keras.layers.Dense(500, activation="relu"),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential([keras.Input((28, 28)), *layers])
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=12,
    )
    model.fit(x, y, batch_size=128, epochs=epochs, verbose=0)
    return model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]


@pytest.mark.slow
def test_synthetic_can_be_learnt():
    assert accuracy(Source("synthetic"), 3) > 0.95


@pytest.mark.slow
def test_digits_can_be_learnt():
    assert accuracy(Source("digits"), 40) > 0.95


def run(code, **environment):
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ | environment
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_find_imports_nothing_heavy(real_mnist, tmp_path, some):
    for part in ("train", "test"):
        tfrecord.write(str(tmp_path / f"{part}.tfrecords"), *some(5))
    code = f"""
import sys
from tf2dist.data import image_sources, tfrecord
image_sources.find("digits"), image_sources.find("synthetic"), image_sources.find({str(tmp_path)!r})
assert image_sources.find("mnist", {real_mnist!r}).path
print([name for name in ("tensorflow", "tensorflow_datasets", "sklearn", "keras", "numpy") if name in sys.modules])
"""
    assert run(code) == "[]\n"


def test_help_imports_nothing_heavy():
    code = """
import sys
from tf2dist.data.tfrecord import __main__ as convert
try:
    convert.main(["--help"])
except SystemExit as exit:
    assert exit.code == 0
print([name for name in ("tensorflow", "tensorflow_datasets", "sklearn", "numpy") if name in sys.modules])
"""
    assert run(code).endswith("\n[]\n")


@pytest.mark.timeout(30)  # tensorflow-datasets by itself would try for minutes
def test_the_real_probe(home):
    reason = download.unreachable()
    assert reason == "" or reason.startswith(f"no connection to {download.HOST}")
    if reason:  # else `find` would download MNIST
        with pytest.raises(DataError, match=f"^mnist is not prepared under {home}/tensorflow_datasets and cannot be"):
            find("mnist")
        assert find("auto").name == "digits"


def test_public_names():
    assert set(data.__all__) <= set(dir(data))
    assert data.NAMES == image_sources.NAMES == ("auto", "mnist", "fashion_mnist", "digits", "synthetic")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        data.nonsense  # noqa: B018


def test_packages_that_are_not_installed_are_named(offline, home, monkeypatch):
    monkeypatch.setattr(image_sources.optional_packages, "missing", lambda module: f"{module} is not installed")
    with pytest.raises(
        DataError, match=r"digits are scikit-learn's, and sklearn is not installed; --dataset=synthetic"
    ):
        find("digits")
    with pytest.raises(
        DataError, match=r"^mnist is not prepared under .* cannot be downloaded: tensorflow_datasets is not"
    ):
        find("mnist")
    with pytest.raises(DataError, match="digits are scikit-learn's"):
        find("auto")
    assert find("synthetic") == Source("synthetic")
