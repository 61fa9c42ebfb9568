"""The jobs of `chaos`: trainings with faults of their tasks, by their launcher, and with those of a job as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Generator

import numpy as np

from benchmarks import programs
from benchmarks.programs.chaos_tf2dist import STEPS_PER_EPOCH, STEPS_PER_EXECUTION
from tf2dist.system import linux

_FULL_SECONDS = 30.0  # at most, until a checkpoint could not be written
_NOT_WRITTEN = "cannot be written: No space left on device"
_DISK = "4m"  # where checkpoints are, if it is to be full
_GONE_SECONDS = 30.0  # in which nothing may be left of a job whose launcher was killed
_MARK = "CHAOS_JOB"  # in the environment of all that a job starts
FAULTS = 20  # at most, of one job, each in its own part of the training
STEPS = 20 * STEPS_PER_EPOCH
_DEADLINE = 400.0  # seconds for one job
JOBS = {
    "one": (["--workers=1"], ["worker-0"]),
    "mirrored": (["--workers=1"], ["worker-0"]),
    "multiworker": (["--workers=2"], ["worker-0", "worker-1"]),
    "ps": (["--ps=1", "--workers=2"], ["worker", "ps-0", "chief-0"]),
    "ps-sync": (["--ps=1", "--workers=2"], ["worker", "ps-0", "chief-0"]),
}


def train(strategy: str, faults: str, seed: int) -> tuple[dict, dict | None]:
    """Runs a job; returns what the launcher says of it, and what the program has written, if it has."""
    with _directory() as out, _job(strategy, out, faults, seed) as job:
        return _finish(strategy, out, job)


def kill_launcher(strategy: str, steps: list[int]) -> tuple[dict, dict | None]:
    """As `train`, of a job whose launcher is killed after so many steps, and that is started by the same command."""
    with _directory() as out:
        began, faults = time.monotonic(), []
        for step in steps:
            with _job(strategy, out) as job:
                if not _reaches(out, step, job):
                    break
                killed = time.time()
                job.kill()
                job.wait()
                _wait_until_gone(job.mark)
                faults.append((killed, time.time(), _progress(out)[-1][1]))
        with _job(strategy, out) as job:
            found, result = _finish(strategy, out, job)
        found["seconds"] = time.monotonic() - began
        found["faults"] = [_effect(out, *fault) for fault in faults]
        return found, result


def fill_disk(strategy: str, steps: list[int]) -> tuple[dict, dict | None]:
    """As `train`, of a job that has no room for its checkpoints for a while after so many steps."""
    with _directory() as out:
        disk = out / "checkpoints"
        disk.mkdir()
        mounted = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"]), "sh", "-c"]
        mounted += [f'mount -t tmpfs -o size={_DISK} tmpfs "$0" && exec "$@"', str(disk)]
        faults = []
        with _job(strategy, out, prefix=mounted) as job:
            for step in steps:
                if not _reaches(out, step, job):
                    break
                # The disk is mounted for the job alone.
                if not _fill(pathlib.Path(f"/proc/{job.pid}/root") / disk.relative_to("/"), out / "said", job):
                    break
                failed = time.time()
                faults.append((failed, failed, _progress(out)[-1][1]))
            found, result = _finish(strategy, out, job)
        found["faults"] = [_effect(out, *fault) for fault in faults]
        return found, result


class _Job(subprocess.Popen):
    """A launcher, when it was started, and the mark in the environment of all that it starts."""

    began: float
    mark: str


@contextlib.contextmanager
def _job(
    strategy: str, out: pathlib.Path, faults: str = "none", seed: int = 0, prefix: list[str] | None = None
) -> Generator[_Job]:
    mark, began = uuid.uuid4().hex, time.time()
    command = [
        *(prefix or ()),
        *(sys.executable, "-m", "launch", "local", *JOBS[strategy][0], f"--max_restarts={2 * FAULTS}"),
        *(f"--timeout={_DEADLINE}", f"--chaos={faults}", f"--chaos_seed={seed}"),
        *(f"--chaos_report={out / 'chaos.json'}", "--"),
        *(f"{programs.__name__}.chaos_tf2dist", strategy, str(out), str(STEPS)),
    ]
    with open(out / "said", "w") as said:
        job = _Job(command, stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, _MARK: mark})
    job.began, job.mark = began, mark
    try:
        yield job
    finally:
        job.terminate()  # which ends what it has started; nothing where it has ended
        job.wait()


def _finish(strategy: str, out: pathlib.Path, job: _Job) -> tuple[dict, dict | None]:
    """Waits for the end of a job."""
    job.wait(_DEADLINE + 60.0)
    try:
        found = json.loads((out / "chaos.json").read_text())
    except OSError:
        said = (out / "said").read_text()
        raise SystemExit(f"{strategy}: the launcher ended with {job.returncode}:\n{said}") from None
    written = out / "result.npz"
    return found, dict(np.load(written)) if written.exists() else None


@contextlib.contextmanager
def _directory() -> Generator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield pathlib.Path(directory)


def _fill(disk: pathlib.Path, said: pathlib.Path, job: _Job) -> bool:
    """Fills a disk until the job says that a checkpoint could not be written; False if it never does."""
    ballast, end = disk / "ballast", time.monotonic() + _FULL_SECONDS
    before, failed = said.read_text().count(_NOT_WRITTEN), False
    with contextlib.suppress(FileNotFoundError):  # the job has ended meanwhile, and its disk is gone
        with open(ballast, "wb", buffering=0) as file:
            while not failed and job.poll() is None and time.monotonic() < end:
                try:
                    file.write(bytes(1 << 12))
                except OSError:
                    time.sleep(0.02)
                    failed = said.read_text().count(_NOT_WRITTEN) > before
        ballast.unlink()
    return failed


def _progress(out: pathlib.Path) -> list[tuple[float, int]]:
    """The times of all executions that have ended, with the steps that were made by then."""
    try:
        lines = (out / "progress").read_text().splitlines(keepends=True)
    except OSError:
        return []
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(float(when), int(steps)) for when, steps in whole]


def _reaches(out: pathlib.Path, step: int, job: _Job) -> bool:
    """Waits until a job has made so many steps; False if it has ended before."""
    while not any(at > job.began and steps >= step for at, steps in _progress(out)):
        if job.poll() is not None:
            return False
        time.sleep(0.01)
    return job.poll() is None


def _effect(out: pathlib.Path, when: float, over: float, reached: int) -> dict:
    """What came of a fault: as the launcher says it of its own.

    Args:
      when: it came, in seconds since the epoch.
      over: from when on steps are those of a process that has met it.
      reached: how many there were before.
    """
    after = [(at, steps) for at, steps in _progress(out) if at > over]
    recovered = [at for at, steps in after if steps > reached]
    again = after[0][1] - STEPS_PER_EXECUTION if after else reached
    return {
        "recovery_seconds": recovered[0] - when if recovered else None,
        "lost_steps": max(0, reached - again),
    }


def _wait_until_gone(mark: str) -> None:
    """Waits until nothing is left of a job.

    Raises:
      SystemExit: something is, for too long.
    """
    deadline = time.monotonic() + _GONE_SECONDS
    while left := linux.started_with(_MARK, mark):
        if time.monotonic() > deadline:
            raise SystemExit(
                f"{len(left)} processes of a job are left {_GONE_SECONDS:g} s after its launcher was killed"
            )
        time.sleep(0.05)
