"""Checkpoints on disks that are full, and in directories that another training writes to."""

import logging
import os
import socket
import subprocess
import time

import pytest

import tf2dist
from tests.training.interrupted import STEPS, fit
from tf2dist.errors import CheckpointError
from tf2dist.runtime import session
from tf2dist.training import checkpoint_files
from tf2dist.training.checkpoint_files import list_checkpoints
from tf2dist.training.status_file import write_status


def test_a_full_disk(tf, tmp_path, monkeypatch):
    """What was saved before stays, and no half of a checkpoint is left."""
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1)

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_files, "flush", full)
    with pytest.raises(OSError, match="No space left") as raised:
        fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=2)
    assert sorted(os.listdir(tmp_path)) == [f"checkpoint-{STEPS}", "status.json"]
    status, line = session.current().explain(raised.value)
    assert status == 1
    assert f"checkpoint-{2 * STEPS} cannot be written: No space left on device" in line


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # as which pytest has HDF5's tracebacks
@pytest.mark.parametrize("left", [4096, 65536])
def test_a_disk_that_is_really_full(tf, tmp_path, capfd, left):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        strategy = tf2dist.make_strategy("one")
        fit(strategy, tf2dist.Checkpoint(disk), epochs=1)
        (disk / "filler").write_bytes(b"0" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - left))
        capfd.readouterr()
        with pytest.raises(
            CheckpointError, match=r"checkpoint-\d+ cannot be written: No space left on device"
        ) as raised:
            fit(strategy, tf2dist.Checkpoint(disk), epochs=2)
        assert "\n" not in str(raised.value)
        assert "Traceback" not in capfd.readouterr().err
        assert [n for n in sorted(os.listdir(disk)) if n != "filler"] == [f"checkpoint-{STEPS}", "status.json"]
        os.remove(disk / "filler")
        model, history = fit(strategy, tf2dist.Checkpoint(disk), epochs=2)
        assert (len(history["loss"]), tf2dist.updates(model)) == (1, 2 * STEPS)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("full", ["from the beginning", "at the end"])
def test_a_full_disk_for_the_status(tf, tmp_path, monkeypatch, caplog, full):
    """Nobody needs it where a checkpoint is not required."""
    from tf2dist.training import checkpoint, one_training_per_directory

    def no_room(directory, state, **kwargs):
        if full == "from the beginning" or state == "done":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(one_training_per_directory, "write_status", no_room)
    monkeypatch.setattr(checkpoint, "write_status", no_room)
    one = tf2dist.make_strategy("one")
    with caplog.at_level(logging.WARNING, "tf2dist"):
        model, _ = fit(one, tf2dist.Checkpoint(tmp_path, required=False), epochs=1)
    assert tf2dist.updates(model) == STEPS
    assert len(list_checkpoints(tmp_path)) == 1
    assert [r.getMessage() for r in caplog.records if "status.json cannot be written: No space left" in r.getMessage()]
    with pytest.raises(CheckpointError, match=r"status\.json cannot be written: No space left on device"):
        fit(one, tf2dist.Checkpoint(tmp_path), epochs=2)


def test_another_training_that_is_under_way_is_said_at_once(tf, tmp_path, caplog):
    with subprocess.Popen(["sleep", "100"]) as process:
        write_status(str(tmp_path), "training", writer=f"process {process.pid} of {socket.gethostname()}")
        fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), epochs=1)
        process.kill()
    assert f"process {process.pid} of {socket.gethostname()} writes checkpoints to {tmp_path} too" in caplog.text
    caplog.clear()
    write_status(str(tmp_path), "training", writer=f"process {process.pid} of {socket.gethostname()}")
    fit(tf2dist.make_strategy("one"), tf2dist.Checkpoint(tmp_path), epochs=2)
    assert "too" not in caplog.text  # that one is dead


def test_two_trainings_in_one_directory_are_said(tmp_path, caplog, monkeypatch):
    """By both, once; one alone, and one after another that was killed, say nothing."""
    from tf2dist.training import one_training_per_directory as module

    monkeypatch.setattr(module, "STATUS_SECONDS", 0.01)
    module.write_status(str(tmp_path), "training", writer="process 1 of a host that is gone")
    with caplog.at_level(logging.WARNING, "tf2dist"):
        ours = module.StatusUpdates(str(tmp_path))
        time.sleep(0.5)
        assert not caplog.records
        monkeypatch.setattr(module.socket, "gethostname", lambda: "elsewhere")
        theirs = module.StatusUpdates(str(tmp_path))
        deadline = time.monotonic() + 30
        while len(caplog.records) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.5)
        ours.end("done")
        theirs.end("done")
    said = sorted(record.getMessage() for record in caplog.records)
    assert len(said) == 2
    assert f"of {socket.gethostname()} writes checkpoints to {tmp_path} too" in "".join(said)
    assert f"process {os.getpid()} of elsewhere writes" in said[0] + said[1]
