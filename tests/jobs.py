"""Jobs of several processes: started by hand, one process a task, or by our launcher, and killed in the middle."""

import contextlib
import os
import subprocess
import sys
import time
import uuid

import pytest

from tf2dist import Cluster, Task
from tf2dist.launch import free_ports
from tf2dist.system import linux

DEADLINE = 250.0  # seconds
_MARK = "CLUSTER_TEST"


class Job:
    """A job under way; `processes` by the task's name where they were started by hand."""

    def __init__(self, directory):
        self.directory = directory
        self.processes = {}
        self._started = {}
        self.mark = uuid.uuid4().hex

    def start(self, name, command, env):
        self._started[name] = command, env
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", *command], env={**os.environ, **env, _MARK: self.mark},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def restart(self, name):
        """Starts a process that has ended again, in its place."""
        ended = self.processes.pop(name)
        ended.communicate(timeout=DEADLINE)
        self.start(name, *self._started[name])

    def until(self, name):
        """Waits until the program has made a file of this name."""
        deadline = time.monotonic() + DEADLINE
        while not (self.directory / name).exists():
            assert time.monotonic() < deadline
            first = next(iter(self.processes.values()))
            if first.poll() is not None:
                pytest.fail("it ended with\n" + "\n".join(first.communicate()))  # an assertion would cut it short
            time.sleep(0.02)

    def pids(self, name):
        """Of the processes that the launcher has started under this task's name."""
        found = []
        for pid in linux.started_with(_MARK, self.mark):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
                found += [pid] if file.read() == f"{name}\n" else []
        return found

    def ends(self, name):
        """Status and standard error of a process that must end by itself."""
        _, error = self.processes[name].communicate(timeout=DEADLINE)
        return self.processes[name].returncode, error

    def left(self):
        """The processes that live, of all that were started."""
        return linux.started_with(_MARK, self.mark)

    def kill(self):
        """Kills everything that was started, and what that has started, at once."""
        deadline = time.monotonic() + DEADLINE
        while pids := linux.started_with(_MARK, self.mark):
            assert time.monotonic() < deadline
            linux.kill(pids, 9)
            time.sleep(0.02)
        for process in self.processes.values():
            process.communicate()


def run_program(layout, name, *arguments, limit=280):
    """Runs `tests.programs.NAME` by `python -m launch local *layout`, and returns what it has printed.

    It must end with status 0 within `limit` seconds.
    """
    command = [sys.executable, "-m", "launch", "local", *layout, "--", f"tests.programs.{name}", *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        said = b"".join(part for part in (late.stdout, late.stderr) if part).decode(errors="replace")
        pytest.fail(f"{name} has not ended within {limit} s; it has said:\n{said}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def by_hand(tmp_path):
    """by_hand(program, *arguments): starts chief, two workers and a ps, each as a process of its own.

    With peers=True there are the two workers alone.
    """
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(_killed(Job(tmp_path)))
        chief, first, second, ps = stack.enter_context(free_ports.hold(4))

        def start(program, *arguments, peers=False):
            at = "127.0.0.1:{}".format
            jobs = {"worker": (at(first), at(second))}
            if not peers:
                jobs |= {"chief": (at(chief),), "ps": (at(ps),)}
            cluster = Cluster(jobs, Task("worker", 0) if peers else Task("chief", 0))
            for task in cluster.tasks:
                job.start(str(task), [program, *arguments], {"TF_CONFIG": cluster.at(task).to_tf_config()})
            return job

        yield start


@pytest.fixture
def launched(tmp_path):
    """launched(layout, program, *arguments): starts it by `python -m launch local *layout`, or alone without one."""
    with contextlib.ExitStack() as stack:

        def start(layout, program, *arguments):
            job = stack.enter_context(_killed(Job(tmp_path)))
            launcher = ["launch", "local", *layout, "--"] if layout else []
            job.start("launcher", [*launcher, program, *arguments], {})
            return job

        yield start


@contextlib.contextmanager
def _killed(job):
    try:
        yield job
    finally:
        job.kill()
