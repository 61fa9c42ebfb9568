"""Trainers read and write objects by URL, as files; what a store does not do is one line."""

import json

import numpy as np
import pytest

from tests.conftest import sampled
from tf2dist.data import tfrecord
from tf2dist.system.atomic_files import replacing


@pytest.fixture
def digits_in_store(object_store):
    """TFRecord files of 300 and 100 images in the store; returns the URL of their directory."""
    random = np.random.RandomState(0)
    for part, size in (("train", 300), ("test", 100)):
        images = random.randint(0, 256, (size, 28, 28), np.uint8)
        tfrecord.write(f"{object_store.bucket}/digits/{part}.tfrecords", images, np.arange(size) % 10)
    return f"{object_store.bucket}/digits"


@pytest.mark.parametrize("strategy", sampled(["one", "ps", "multiworker"], (), ["ps"]))
def test_mnist_reads_and_reports(run, object_store, digits_in_store, strategy, tmp_path):
    arguments = f"--strategy={strategy}", f"--dataset={digits_in_store}", "--steps=6", "--batch_size=60"
    done = run(*arguments, f"--report={object_store.bucket}/out/report.json")
    assert done.status == 0, done.err
    assert ("no private network here (a flag is a URL)" in done.err) == (strategy != "one")
    report = json.loads(object_store.read("out/report.json"))
    assert (report["dataset"], report["test_examples"], report["steps"]) == ("tfrecord", 100, 6)
    assert list(tmp_path.iterdir()) == []
    local = [tmp_path / f"{part}.tfrecords" for part in ("train", "test")]
    for path in local:
        path.write_bytes(object_store.read(f"digits/{path.name}"))
    if strategy == "one":  # the same files on a disk give the same numbers
        assert run("--strategy=one", f"--dataset={tmp_path}", *arguments[2:], "--report=it.json").status == 0
        same = json.loads((tmp_path / "it.json").read_text())
        assert same["test_loss"] == report["test_loss"]


@pytest.mark.exhaustive
def test_life_reads_and_writes(run, object_store, tmp_path):
    object_store.put("glider.rle", b"x = 3, y = 3, rule = B3/S23\nbob$2bo$3o!\n")
    places = {name: f"{object_store.bucket}/out/{name}" for name in ("it.rle", "it.gif", "it.csv")}
    done = run(
        f"--pattern={object_store.bucket}/glider.rle", "--size=8x8", "--generations=4", f"--out={places['it.rle']}",
        f"--gif={places['it.gif']}", f"--curve={places['it.csv']}", "--view=none", module="trainers.life",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert object_store.read("out/it.rle").startswith(b"x = 8, y = 8, rule = B3/S23:T8,8")
    assert object_store.read("out/it.gif").startswith(b"GIF8")
    assert object_store.read("out/it.csv").splitlines()[-1] == b"4,5"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_mapreduce_reads(run, object_store, tmp_path):
    object_store.put("numbers.txt", b"1, 2\n6\n")
    done = run(
        f"--file={object_store.bucket}/numbers.txt", f"--report=file://{tmp_path}/it.json", module="trainers.mapreduce"
    )
    assert done.status == 0, done.err
    assert json.loads((tmp_path / "it.json").read_text())["mean"] == 3


REFUSED = {
    ("--report={bucket}",): "is a directory; name a file in it",
    ("--report=s3://no-such-bucket/x",): "cannot be written: there is no bucket no-such-bucket",
    ("--report=s3://status-403/x", "--strategy=ps"): "cannot be written: permission denied",
    ("--dataset={bucket}/nowhere",): "is neither auto, mnist",
    ("--dataset=s3://no-such-bucket/x",): "cannot be read: there is no bucket no-such-bucket",
    ("--dataset={bucket}/silent",): "cannot be read: the store has not answered within 3 s (TF2DIST_FILES_TIMEOUT)",
    ("--dataset={bucket}/damaged",): "train.tfrecords is truncated",
    ("--dataset=mnist", "--data_dir={bucket}/damaged"): "mnist is not prepared under s3://",
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [pytest.param(r, id=" ".join(r)) for r in REFUSED])
def test_refused_before_tensorflow_is_imported(run, object_store, no_tensorflow, arguments, tmp_path):
    for part in ("train", "test"):
        object_store.put(f"damaged/{part}.tfrecords", b"\0")
    arguments = [argument.format(bucket=object_store.bucket) for argument in arguments]
    limit = {"TF2DIST_FILES_TIMEOUT": "3"} if "silent" in arguments[0] else {}
    line = run(*arguments, env=no_tensorflow | limit).refused()
    assert REFUSED[tuple(a.replace(object_store.bucket, "{bucket}") for a in arguments)] in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_report_that_the_store_does_not_take(run, object_store):
    done = run("--dataset=synthetic", "--steps=2", f"--report={object_store.bucket}/status-400")
    assert (done.status, done.err.count("\n")) == (1, 1), done.err
    assert f"{object_store.bucket}/status-400 cannot be written: " in done.err


@pytest.mark.slow
def test_a_pipeline_of_objects_is_that_of_files(object_store, digits_in_store, tmp_path):
    """In the same order, from several files, and after the object was replaced with what it was when it began."""
    urls = [f"{digits_in_store}/{part}.tfrecords" for part in ("train", "test")]
    paths = [str(tmp_path / f"{number}") for number in range(2)]
    for url, path in zip(urls, paths, strict=True):
        with open(path, "wb") as file:
            file.write(object_store.read(url.removeprefix(f"{object_store.bucket}/")))
    ours, theirs = (tfrecord.read(names, 64, shuffle=50, seed=1) for names in (urls, paths))
    with replacing(urls[0]) as (part,), open(part, "wb") as file:
        file.write(b"something else")
    for _ in range(2):
        batches = list(ours.as_numpy_iterator())
        assert len(batches) == 7
        for (images, labels), (expected, classes) in zip(batches, theirs.as_numpy_iterator(), strict=True):
            np.testing.assert_array_equal(images, expected)
            np.testing.assert_array_equal(labels, classes)
