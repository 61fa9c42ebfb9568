"""The processes of the parity tests end with the tests, however those end."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tf2dist.system import linux

PROGRAM = """
import os, sys, time
from tests.parity import processes

def stays(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(600)

if __name__ == "__main__":
    processes._fork.set_forkserver_preload([])  # not TensorFlow, which is not needed here
    processes.tf1_cluster(stays, {"ps": 1, "worker": 2}, sys.argv[1])
"""


@pytest.mark.timeout(120)
def test_a_kill_leaves_no_process_behind(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pids").mkdir()
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    tests = subprocess.Popen(
        [sys.executable, "program.py", str(tmp_path / "pids")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{root}:{os.environ['PYTHONPATH']}"},
    )
    try:
        until(lambda: len(list((tmp_path / "pids").iterdir())) == 3)
        started = linux.descendants(tests.pid)
        assert {int(path.name) for path in (tmp_path / "pids").iterdir()} < set(started)
    finally:
        tests.send_signal(signal.SIGKILL)
        tests.wait()
    until(lambda: not any(alive(pid) for pid in started))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def until(true, seconds=50):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
