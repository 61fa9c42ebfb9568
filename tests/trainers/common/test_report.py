"""The report: in one piece, or not at all; and places that cannot be written are found before a job starts."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tests.conftest import every_third
from tf2dist.errors import UsageError
from tf2dist.system import output_files
from trainers.common import flag_requirements, report


def shared(**values):
    return SimpleNamespace(**{"report": None, "logdir": None, **values})


def test_places_that_can_be_written_are_left_as_they_are(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "logs").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for name in ("new", "old", "link"):
        flag_requirements.check_shared_outputs(shared(report=str(tmp_path / name)))
    for name in ("logs", "new", "new/below", "."):
        flag_requirements.check_shared_outputs(shared(logdir=str(tmp_path / name)))
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "old").read_text() == "old"


def test_a_relative_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flag_requirements.check_shared_outputs(shared(report="report.json", logdir="logs"))
    assert os.listdir() == []
    with pytest.raises(UsageError, match=r"--report=logs/report\.json cannot be written"):
        flag_requirements.check_shared_outputs(shared(report="logs/report.json"))


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
    flag_requirements.check_shared_outputs(shared(report=str(pipe)))
    report.write(str(pipe), {"steps": 3})
    assert json.loads(read.result(20)) == {"steps": 3}
    assert pipe.is_fifo()


@every_third("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link_of_link", "link"])
def test_standard_output_is_written_to_though_it_is_a_file(tmp_path, name):
    """`--report=/dev/stdout > it.txt`: behind what was printed, into the file that the shell has opened."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    (tmp_path / "link_of_link").symlink_to("link")
    program = """
        import sys
        from types import SimpleNamespace
        from trainers.common import flag_requirements, report
        print("printed before")
        flag_requirements.check_shared_outputs(SimpleNamespace(report=sys.argv[1], logdir=None))
        report.write(sys.argv[1], {"steps": 3})
        print("printed after")
    """
    with open(tmp_path / "it.txt", "w") as file:
        opened = os.fstat(file.fileno()).st_ino
        command = [sys.executable, "-c", textwrap.dedent(program), os.path.join(tmp_path, name)]
        env = {**os.environ, "PYTHONPATH": os.getcwd()}
        subprocess.run(command, stdout=file, env=env, cwd=tmp_path, timeout=120, check=True)
    path = tmp_path / "it.txt"
    lines = path.read_text().splitlines()
    assert (path.stat().st_ino, lines[0], lines[-1]) == (opened, "printed before", "printed after")
    assert json.loads("\n".join(lines[1:-1])) == {"steps": 3}
    assert {found.name for found in tmp_path.iterdir()} == {"it.txt", "link", "link_of_link"}


def test_only_the_report_goes_to_what_is_no_file(tmp_path):
    """Others are replaced when they are written: a device would be gone."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    for path in ("/dev/null", "/dev/stdout", str(tmp_path / "pipe")):
        with pytest.raises(UsageError, match=rf"--gif={path} is no regular file and would be replaced by one; name"):
            output_files.check_writable(f"--gif={path}", path)
        output_files.check_writable(f"--report={path}", path, takes_special=True)
    output_files.check_writable("--gif=file", str(tmp_path / "file"))
