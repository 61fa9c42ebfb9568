import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tf2dist.data import Source, find, load, synthetic_dataset, tfrecord
from tf2dist.data.tfrecord import __main__ as convert
from tf2dist.data.tfrecord import writing
from tf2dist.system import files


@pytest.fixture(autouse=True)
def handlers():
    """`main` answers signals for its whole process, which here is pytest's."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A session that a test before has left here has a thread that hears of each signal, and may look only when that
    # session's handler is in its place again: it would then end this process.
    wakeup = signal.set_wakeup_fd(-1)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(wakeup)


@pytest.mark.slow
def test_the_command(tmp_path):
    """As a user runs it: what was written can be found and is what was asked for, and TensorFlow is quiet."""
    out = tmp_path / "new" / "out"
    command = [sys.executable, "-m", "tf2dist.data.tfrecord", "--dataset=digits", f"--out={out}"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert outcome.stderr == ""
    assert outcome.returncode == 0
    lines = outcome.stdout.splitlines()
    assert lines[0].startswith(f"Wrote 360 images (digits) to {out}/test.tfrecords, ")
    assert lines[1].startswith(f"Wrote 1,437 images (digits) to {out}/train.tfrecords, ")
    assert len(lines) == 2
    assert sorted(os.listdir(out)) == ["test.tfrecords", "train.tfrecords"]
    for part, right in zip(load(find(str(out))), load(Source("digits")), strict=True):
        np.testing.assert_array_equal(part[0], right[0])
        np.testing.assert_array_equal(part[1], right[1])


@pytest.mark.slow
def test_says_that_auto_fell_back(offline, tmp_path, capfd):
    assert convert.main([f"--out={tmp_path}"]) == 0
    output = capfd.readouterr()
    assert output.out.startswith("Using scikit-learn's handwritten digits, because mnist is not prepared under ")
    assert output.err == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: --out"),
        (["--out={}", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["--out={}", "--data=x"], "unrecognized arguments: --data=x"),
        (["--out={}", "--dataset=cifar"], "--dataset=cifar is neither"),
        (["--out={}", "--dataset=mnist"], "mnist is not prepared under"),
        (["--out={}", "--data_dir=/absent"], "--data_dir=/absent is not a directory"),
        (["--out={}/file", "--dataset=digits"], "/file is not a directory"),
        (["--out={}/full", "--dataset=digits"], "/full/train.tfrecords is a directory"),
    ],
)
def test_wrong_command(offline, tmp_path, capfd, arguments, reason):
    (tmp_path / "file").touch()
    (tmp_path / "full" / "train.tfrecords").mkdir(parents=True)
    with pytest.raises(SystemExit) as exit:
        convert.main([argument.format(tmp_path) for argument in arguments])
    assert exit.value.code == 2
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert reason in output.err
    assert sorted(os.listdir(tmp_path)) == ["file", "full", "home"]


def test_failure_on_the_way(tmp_path, capfd, monkeypatch):
    def full(path, images, labels):
        open(path, "w").close()
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(tfrecord, "write_in_place", full)
    assert convert.main(["--dataset=digits", f"--out={tmp_path}"]) == 1
    assert "error: [Errno 28] No space left on device" in capfd.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("part", [0, 1])
def test_signal_in_the_middle(tmp_path, monkeypatch, number, part):
    """The process signals itself between two records of the first or of the second file."""
    records, written = writing._records, []

    def interrupted(images, labels):
        written.append(images)
        for index, record in enumerate(records(images, labels)):
            if index == 100 and len(written) == part + 1:
                assert len(list(tmp_path.glob(".*.part"))) == part + 1
                signal.raise_signal(number)
            yield record

    monkeypatch.setattr(writing, "_records", interrupted)
    (tmp_path / "train.tfrecords").write_text("old")
    with pytest.raises(SystemExit) as exit:
        convert.main(["--dataset=digits", f"--out={tmp_path}"])
    assert exit.value.code == 128 + number
    assert os.listdir(tmp_path) == ["train.tfrecords"]
    assert (tmp_path / "train.tfrecords").read_text() == "old"


def test_converts_tfrecords_too(tmp_path, capfd):
    train, test = synthetic_dataset.load(20, 10)
    (tmp_path / "in").mkdir()
    tfrecord.write(str(tmp_path / "in" / "train-00000-of-00002.tfrecord"), train[0][:5], train[1][:5])
    tfrecord.write(str(tmp_path / "in" / "train-00001-of-00002.tfrecord"), train[0][5:], train[1][5:])
    tfrecord.write(str(tmp_path / "in" / "test.tfrecord"), *test)
    assert convert.main([f"--dataset={tmp_path / 'in'}", f"--out={tmp_path / 'out'}"]) == 0
    for part, right in zip(load(find(str(tmp_path / "out"))), (train, test), strict=True):
        np.testing.assert_array_equal(part[0], right[0])
        np.testing.assert_array_equal(part[1], right[1])


@pytest.mark.slow
def test_writes_into_a_store(object_store, tmp_path):
    command = [sys.executable, "-m", "tf2dist.data.tfrecord", "--dataset=synthetic", f"--out={object_store.bucket}/new"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert object_store.keys() == ["new/test.tfrecords", "new/train.tfrecords"]
    for part in ("test", "train"):
        assert f"{object_store.bucket}/new/{part}.tfrecords, " in done.stdout
        path = tmp_path / part
        path.write_bytes(object_store.read(f"new/{part}.tfrecords"))
        assert tfrecord.count_records(path) == tfrecord.count_records(f"{object_store.bucket}/new/{part}.tfrecords") > 0


@pytest.mark.slow
def test_a_part_that_a_store_does_not_take_leaves_no_data_set_of_two(object_store, monkeypatch, capsys):
    """The old training part is gone by then, beside which the new test part would be taken for its own."""
    out = f"{object_store.bucket}/set"
    for part in ("test", "train"):
        object_store.put(f"set/{part}.tfrecords")
    put = files.put

    def refuse(path, url):
        if url.endswith("train.tfrecords"):
            raise files.StoreError(url, "written", "the line is down")
        put(path, url)

    monkeypatch.setattr(files, "put", refuse)
    assert convert.main(["--dataset=digits", f"--out={out}"]) == 1
    assert "the line is down" in capsys.readouterr().err
    assert object_store.keys() == ["set/test.tfrecords"]
