"""Trainers run as a user runs them, each with a mark by which everything that it left behind is found."""

import os
import pathlib
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass

import pytest

from tf2dist.system import linux

ROOT = pathlib.Path(__file__).parents[2]
DEADLINE = 300.0  # seconds; TensorFlow alone takes five on a machine that is not busy
_MARK = "TRAINER_TEST"
_UNSET = ("TF_CONFIG", "TFDS_DATA_DIR", "TF2DIST_PREPARED", "TF2DIST_LAUNCHED_AT", "TF_CPP_MIN_LOG_LEVEL")
# Found in place of the real ones by a program that must not get so far.
_NO_TENSORFLOW = "raise AssertionError('this must be found out before TensorFlow is imported')\n"


@dataclass
class Done:
    """How a trainer ended."""

    status: int
    out: str
    err: str

    def refused(self, status=2):
        """The one line that says why; fails if it was not refused in this way."""
        assert (self.status, self.err.count("\n"), self.out) == (status, 1, ""), self
        assert "Traceback" not in self.err
        return self.err.rstrip("\n")


class Trainer:
    """A trainer under way in a directory of its own."""

    def __init__(self, arguments, env, directory):
        self.mark = uuid.uuid4().hex
        home = directory.parent / f"{directory.name}_home"
        home.mkdir(exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if name not in _UNSET}
        path = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env={**inherited, "HOME": str(home), **env, "PYTHONPATH": path, _MARK: self.mark},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, timeout=DEADLINE):
        out, err = self.process.communicate(timeout=timeout)
        return Done(self.process.returncode, out, err)

    def all_gone(self, within=DEADLINE):
        """Whether nothing that it started is left, or soon will be."""
        deadline = time.monotonic() + within
        while (left := linux.started_with(_MARK, self.mark)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not left

    def kill(self):
        linux.kill(linux.started_with(_MARK, self.mark), 9)
        self.process.communicate()


@pytest.fixture(scope="session")
def no_tensorflow(tmp_path_factory):
    """Environment of a program that must end before it imports TensorFlow."""
    folder = tmp_path_factory.mktemp("no_tensorflow")
    for name in ("tensorflow", "keras"):
        (folder / f"{name}.py").write_text(_NO_TENSORFLOW)
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def start(tmp_path):
    """start(*arguments, env={}): begins `python -m trainers.mnist arguments`, or another `module`."""
    trainers = []

    def start(*arguments, env=(), module="trainers.mnist"):
        trainers.append(Trainer([module, *arguments], dict(env), tmp_path))
        return trainers[-1]

    yield start
    left = [trainer for trainer in trainers if not trainer.all_gone(within=5.0)]
    for trainer in trainers:
        trainer.kill()
    assert not left, "processes were left behind"


@pytest.fixture
def run(start):
    """run(*arguments): as start, and waits for the end."""
    return lambda *arguments, **kwargs: start(*arguments, **kwargs).finish()


@pytest.fixture
def tree(tmp_path):
    """tree(): every path below the directory in which trainers run, with what is in the files."""

    def tree():
        return {
            str(path.relative_to(tmp_path)): path.read_bytes() if path.is_file() else None
            for path in tmp_path.rglob("*")
        }

    return tree
