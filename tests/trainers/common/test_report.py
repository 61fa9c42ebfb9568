"""The report: in one piece, or not at all; and places that cannot be written are found before a job starts."""

import json
import os
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tf2dist.errors import UsageError
from trainers.common import output_files, report


def shared(**values):
    return SimpleNamespace(**{"report": None, "logdir": None, **values})


def test_places_that_can_be_written_are_left_as_they_are(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "logs").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for name in ("new", "old", "link"):
        output_files.check_shared_outputs(shared(report=str(tmp_path / name)))
    for name in ("logs", "new", "new/below", "."):
        output_files.check_shared_outputs(shared(logdir=str(tmp_path / name)))
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "old").read_text() == "old"


def test_a_relative_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output_files.check_shared_outputs(shared(report="report.json", logdir="logs"))
    assert os.listdir() == []
    with pytest.raises(UsageError, match=r"--report=logs/report\.json cannot be written"):
        output_files.check_shared_outputs(shared(report="logs/report.json"))


def test_the_report_replaces_the_old_one_in_one_piece(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    path.write_text("old")
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *args: (seen.append(path.read_text()), replace(*args)))
    report.write(str(path), {"steps": 3})
    assert seen == ["old"]
    assert json.loads(path.read_text()) == {"steps": 3}
    assert path.read_text().endswith("}\n")
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        report.write(str(path), {"steps": object()})

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        report.write(str(path), {"steps": 3})
    assert os.listdir(tmp_path) == ["report.json"]
    assert path.read_text() == "old"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    report.write(str(tmp_path / "link.json"), {"steps": 3})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text()) == {"steps": 3}


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: Future = Future()
    threading.Thread(target=lambda: read.set_result(pipe.read_text()), daemon=True).start()
    output_files.check_shared_outputs(shared(report=str(pipe)))
    report.write(str(pipe), {"steps": 3})
    assert json.loads(read.result(20)) == {"steps": 3}
    assert pipe.is_fifo()
