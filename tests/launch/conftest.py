"""Jobs started as a user starts them, each with a mark by which everything it left behind is found."""

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import textwrap
import time
import uuid

import pytest

import launch
from tf2dist.launch import emulated_network
from tf2dist.system import linux

DEADLINE = 120.0  # seconds; nothing here takes long, but the machine may be busy
_MARK = "LAUNCH_TEST"
_HEAD = """
import json, os, pathlib, signal, subprocess, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
me = f"{task['type']} {task['index']}"
here = pathlib.Path(__file__).parent

def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.01)
"""


class Job:
    """A launcher under way, with pipes on its output."""

    def __init__(self, arguments, env, **pipes):
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launch", *arguments],
            env={**os.environ, **env, _MARK: self.mark},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes},
        )
        self.seen = b""

    def finish(self, timeout=DEADLINE):
        """Waits for the end; returns exit status, stdout and stderr."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, (self.seen + (out or b"")).decode(), (err or b"").decode()

    def until(self, text, times=1):
        """Reads stdout until a text was there so often."""
        deadline = time.monotonic() + DEADLINE
        while self.seen.count(text.encode()) < times:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
            if select.select([self.process.stdout], [], [], 1)[0]:
                data = os.read(self.process.stdout.fileno(), 65536)
                assert data, f"ended without {text!r}: {self.seen!r}, {self.process.stderr.read()!r}"
                self.seen += data
        return self.seen.decode()

    def helper(self):
        """The pid of the process that forks the others."""
        [pid] = [pid for pid in self.left() if _parent(pid) == self.process.pid]
        return pid

    def unread(self):
        """Bytes that wait in the pipe of its standard output."""
        return int.from_bytes(fcntl.ioctl(self.process.stdout, termios.FIONREAD, bytes(4)), sys.byteorder)

    def left(self):
        """Pids of everything that this job has started and that still lives."""
        return linux.started_with(_MARK, self.mark)

    def all_gone(self, within=DEADLINE):
        """Whether nothing is left, or soon will be."""
        deadline = time.monotonic() + within
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.left()


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Buffers as a user has them, and a launcher that can be started in any directory."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    root = os.path.dirname(os.path.dirname(launch.__file__))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))


@pytest.fixture(scope="session")
def hosts():
    """For jobs whose tasks are hosts in a network of their own."""
    if why := emulated_network.refusal():
        pytest.skip(f"there can be no network of hosts here: {why}")


@pytest.fixture
def start(tmp_path):
    """start(code, *options): runs `python -m launch local *options` with a script made of `code`.

    The helper imports what `preload` names, by default nothing, and what a user's would if that is None.
    In the code `me` is the task's name, and wait_for(name) waits for a file in the test's directory.
    """
    jobs = []

    def start(code, *options, arguments=(), env=(), preload="", **pipes):
        script = tmp_path / "script.py"
        script.write_text(_HEAD + textwrap.dedent(code))
        options = options if preload is None else (f"--preload={preload}", *options)
        jobs.append(Job(["local", *options, "--", str(script), *arguments], dict(env), **pipes))
        return jobs[-1]

    yield start
    left = [pid for job in jobs for pid in job.left()]
    for job in jobs:
        job.process.kill()
        linux.kill(job.left(), signal.SIGKILL)
        job.process.communicate(timeout=DEADLINE)
    assert not left, f"processes were left behind: {left}"


@pytest.fixture
def run(start):
    """run(code, *options): as start, and waits for the end; returns exit status, stdout and stderr."""
    return lambda *args, **kwargs: start(*args, **kwargs).finish()


def _parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
