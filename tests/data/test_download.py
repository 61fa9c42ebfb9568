"""Downloads with a stand-in for tensorflow-datasets, which the child process imports: no network is touched."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tf2dist.data import download
from tf2dist.data.errors import DataError

STAND_IN = """
import os, pathlib, shutil, time

class builder:
    def __init__(self, name, data_dir):
        self.name, self.place = name, pathlib.Path(data_dir)

    def download_and_prepare(self, download_dir):
        pathlib.Path(download_dir).mkdir()
        (pathlib.Path(download_dir) / "archive").write_bytes(b"x" * 1000)
        pathlib.Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
        print("Downloading", flush=True)
        {then}
"""


@pytest.fixture
def tfds(tmp_path, monkeypatch):
    """Makes the child's tensorflow_datasets do something; returns where the child writes its process id."""

    def make(then):
        folder = tmp_path / "modules"
        folder.mkdir()
        (folder / "tensorflow_datasets.py").write_text(STAND_IN.format(then=then))
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        monkeypatch.setenv("PID_FILE", str(tmp_path / "pid"))
        return tmp_path / "pid"

    return make


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pid_file):
    try:  # a child whose parent is dead stays a zombie where nothing reaps it
        return "State:\tZ" in pathlib.Path(f"/proc/{pid_file.read_text()}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_success(tmp_path, prepare, tfds, capfd):
    prepare(tmp_path / "made")
    pid = tfds(f"shutil.copytree({str(tmp_path / 'made')!r}, self.place, dirs_exist_ok=True)")
    root = tmp_path / "new" / "root"
    place = download.download("mnist", str(root))
    assert place == str(root / "mnist" / "3.0.1")
    assert os.listdir(root) == ["mnist"]
    assert os.listdir(root / "mnist") == ["3.0.1"]
    assert len(os.listdir(place)) == 5
    assert gone(pid)
    assert capfd.readouterr() == ("", "")


def test_another_was_quicker(tmp_path, prepare, tfds):
    prepare(tmp_path / "made")
    directory, _ = prepare(tmp_path / "root")
    tfds(f"shutil.copytree({str(tmp_path / 'made')!r}, self.place, dirs_exist_ok=True)")
    assert download.download("mnist", str(tmp_path / "root")) == str(directory)
    assert os.listdir(tmp_path / "root") == ["mnist"]


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("raise OSError('the disk is full')", "failed with status 1: OSError: the disk is full"),
        ("os._exit(3)", "failed with status 3: Downloading"),
        ("pass", "left no finished version"),
        ("(self.place / 'mnist' / '3.0.1').mkdir(parents=True)", "dataset_info.json is missing"),
    ],
)
def test_failure_leaves_nothing(tmp_path, tfds, then, reason):
    tfds(then)
    root = tmp_path / "root"
    with pytest.raises(DataError, match=reason):
        download.download("mnist", str(root))
    assert os.listdir(root) == []


def test_time_limit(tmp_path, tfds):
    pid = tfds("time.sleep(1000)")
    root = tmp_path / "root"
    with pytest.raises(DataError, match=r"the download of mnist did not end within 1.5 s"):
        download.download("mnist", str(root), seconds=1.5)
    assert os.listdir(root) == []
    assert not pid.exists() or gone(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_caller_killed(tmp_path, tfds, number):
    pid = tfds("time.sleep(1000)")
    root = tmp_path / "root"
    code = f"from tf2dist.data.download import download; download('mnist', {str(root)!r})"
    caller = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for(lambda: pid.exists() and pid.read_text())
        assert list(root.glob(".download-*/downloads/archive"))
    finally:
        caller.send_signal(number)
        caller.wait()
    wait_for(lambda: gone(pid))
    assert os.listdir(root) == []


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a directory that not even root can write to")
def test_place_that_cannot_be_written():
    with pytest.raises(DataError, match=r"^mnist cannot be downloaded to /proc: .*; name a writable directory$"):
        download.download("mnist", "/proc")


def test_place_under_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Not a directory; name a writable directory"):
        download.download("mnist", str(tmp_path / "file" / "root"))


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("form", ["http://127.0.0.1:{}", "127.0.0.1:{}", "http://user:word@127.0.0.1:{}/"])
def test_proxy_is_probed(home, monkeypatch, port, form):
    monkeypatch.setenv("HTTPS_PROXY", form.format(port))
    assert download.unreachable() == ""


def test_proxy_that_refuses(home, monkeypatch):
    with socket.socket() as bound:  # bound, but nobody listens
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        reason = download.unreachable()
    assert reason == f"no connection to the HTTPS proxy 127.0.0.1:{port} (Connection refused)"


@pytest.mark.parametrize("proxy", ["http://", "http://host:notaport"])
def test_proxy_that_makes_no_sense(home, monkeypatch, proxy):
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    assert download.unreachable().startswith("the HTTPS proxy's address cannot be understood")


def test_no_proxy_is_honoured(home, monkeypatch, port):
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("NO_PROXY", "googleapis.com")
    asked = []
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: asked.append(address) or socket.socket())
    assert download.unreachable() == ""
    assert asked == [(download.HOST, 443)]


def test_name_server_that_hangs(home, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: release.wait(60) and socket.socket())
    assert download.unreachable(0.1) == f"no connection to {download.HOST} within 0.1 s"
    release.set()
