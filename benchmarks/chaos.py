"""Chaos: trainings whose tasks are killed, stopped, asked to stop and cut off at random moments, beside one in peace.

And those whose launcher is killed, after which the same command is given again; and whose disk is full for a while.
A training has come through if it ends with status 0, has made exactly its updates, and has the weights of the one that
nothing has disturbed, bit for bit. Under asynchronous servers no two trainings have the same weights: there each update
adds 1 to the only weight, which must be the number of updates. Under synchronous ones a killed worker's part of the
data is not read until it is back, so that the weights are others, and the updates are counted alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from benchmarks import programs
from benchmarks.programs.chaos_tf2dist import STEPS_PER_EPOCH, STEPS_PER_EXECUTION
from tf2dist.errors import UsageError
from tf2dist.system import linux
from tf2dist.system.output_files import write_text

_KINDS = {"kill": "", "term": "", "stop": "+2s", "cut": "+2s"}
_OF_JOBS = {"launcher": "kill", "disk": "full"}  # what is done to the job as a whole, and how the table calls it
_FULL_SECONDS = 30.0  # at most, until a checkpoint could not be written
_NOT_WRITTEN = "cannot be written: No space left on device"
_DISK = "4m"  # where checkpoints are, if it is to be full
_GONE_SECONDS = 30.0  # in which nothing may be left of a job whose launcher was killed
_MARK = "CHAOS_JOB"  # in the environment of all that a job starts
_FAULTS = 4  # of one job, each in its own part of the training
_STEPS = 20 * STEPS_PER_EPOCH
_DEADLINE = 400.0  # seconds for one job
JOBS = {
    "one": (["--workers=1"], ["worker-0"]),
    "mirrored": (["--workers=1"], ["worker-0"]),
    "multiworker": (["--workers=2"], ["worker-0", "worker-1"]),
    "ps": (["--ps=1", "--workers=2"], ["worker", "ps-0", "chief-0"]),
    "ps-sync": (["--ps=1", "--workers=2"], ["worker", "ps-0", "chief-0"]),
}


@dataclass
class Outcome:
    """What came of the jobs of one strategy, task and kind of fault.

    Attributes:
      tried, right: faults that were met, and those in jobs that came through all of theirs.
      recovery: seconds after each fault until there was a step more.
      lost: steps made again after each fault.
      goodput: of each job that came through.
      wrong: what was wrong with those that did not come through.
    """

    tried: int = 0
    right: int = 0
    recovery: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    goodput: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `chaos` alone has."""
    group = parser.add_argument_group("chaos")
    group.add_argument("--moments", type=int, default=20, help="faults of each kind for each task (default: 20)")
    group.add_argument("--strategies", default=",".join(JOBS), help=f"default: {','.join(JOBS)}")
    kinds = ",".join([*_KINDS, *_OF_JOBS])
    group.add_argument("--kinds", default=kinds, help=f"default: {kinds}")
    group.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")


def run(rounds: int, options: argparse.Namespace) -> dict:
    """Prints a table, a line for each strategy, task and kind of fault; returns the figures.

    Args:
      rounds: not used; `--moments` says how many.

    Raises:
      UsageError: an option is out of its range.
      SystemExit: a training that nothing disturbs has failed; or, in the end, one that something has.
    """
    if options.moments < 1:
        raise UsageError(f"--moments={options.moments} must be at least 1")
    strategies, kinds = _chosen(options, "strategies", [*JOBS]), _chosen(options, "kinds", [*_KINDS, *_OF_JOBS])
    print(f"{_STEPS} updates a training; {options.moments} faults of each kind, up to {_FAULTS} in one training")
    print("strategy     task      kind  right/met  recovery: median, worst  steps lost: mean, most  goodput")
    figures: dict[str, dict] = {}
    for strategy in strategies:
        quiets = [_train(strategy, "none", 0) for _ in range(2)]  # files are in the system's cache the second time
        quiet, quiet_result = min(quiets, key=lambda found: found[0]["seconds"])
        if quiet_result is None or quiet["status"] or quiet["steps"] != _STEPS:
            raise SystemExit(f"{strategy}: a training that nothing disturbs has failed: {quiet}")
        cases = [(task, kind) for task in JOBS[strategy][1] for kind in kinds if kind in _KINDS]
        if strategy in ("one", "mirrored"):
            cases = [(task, kind) for task, kind in cases if kind != "cut"]  # their only task talks to nobody
        cases += [(what, kind) for what, kind in _OF_JOBS.items() if what in kinds]
        for task, kind in cases:
            outcome = _break(strategy, task, kind, options, quiet["seconds"], quiet_result)
            figures[f"{strategy} {task} {kind}"] = vars(outcome)
            print(_line(strategy, task, kind, outcome), flush=True)
    if wrong := [f"{name}: {why}" for name, found in figures.items() for why in found["wrong"]]:
        if options.report:
            write_text(options.report, json.dumps(figures, indent=2))
        raise SystemExit("\n".join(wrong))
    return figures


def _chosen(options: argparse.Namespace, name: str, known: list[str]) -> list[str]:
    chosen = getattr(options, name).split(",")
    if unknown := [choice for choice in chosen if choice not in known]:
        raise UsageError(f"--{name}: {unknown[0]!r} is none of {', '.join(known)}")
    return chosen


def _break(strategy: str, task: str, kind: str, options: argparse.Namespace, seconds: float, expected: dict) -> Outcome:
    """Runs jobs until so many faults were met.

    Args:
      seconds: that a job takes in peace.
      expected: what it comes to.
    """
    outcome = Outcome()
    for job in range((options.moments + _FAULTS - 1) // _FAULTS):
        count = min(_FAULTS, options.moments - job * _FAULTS)
        part = (_STEPS - STEPS_PER_EPOCH) // count  # the last steps are for what is left to be right
        seed = zlib.crc32(f"{options.seed} {strategy} {task} {kind} {job}".encode())
        if task in _OF_JOBS:
            draw = random.Random(seed)
            steps = [draw.randint(1 + n * part, (n + 1) * part) for n in range(count)]
            faults = f"{kind} {task} at steps {', '.join(map(str, steps))}"
            found, result = (_kill_launcher if task == "launcher" else _fill_disk)(strategy, steps)
        else:
            moments = [f"step{1 + n * part}..{(n + 1) * part}" for n in range(count)]
            faults = ",".join(f"{kind}:{task}@{moment}{_KINDS[kind]}" for moment in moments)
            found, result = _train(strategy, faults, seed)
        outcome.tried += len(found["faults"])
        compared = expected if _has_same_weights(strategy, task, kind) else {}
        if why := _wrong(strategy, found, result, compared, count):
            outcome.wrong.append(f"{faults}, seed {seed}: {why}")
        else:
            outcome.right += count
            outcome.goodput.append(seconds / found["seconds"])
        outcome.recovery += [f["recovery_seconds"] for f in found["faults"] if f["recovery_seconds"] is not None]
        outcome.lost += [f["lost_steps"] for f in found["faults"]]
    return outcome


def _has_same_weights(strategy: str, task: str, kind: str) -> bool:
    return strategy != "ps" and (strategy, task, kind) != ("ps-sync", "worker", "kill")


def _wrong(strategy: str, found: dict, result: dict | None, expected: dict, count: int) -> str:
    """What is wrong with a training; empty if nothing is.

    Args:
      strategy: one of `JOBS`.
      found: what its launcher says.
      result: what its program has written.
      expected: the same of a training that nothing has disturbed, as far as it must be equal.
      count: faults that it was to meet.
    """
    if found["status"]:
        return f"it ended with status {found['status']}"
    if result is None:
        return "it has written no result"
    if len(found["faults"]) != count:
        return f"it met {len(found['faults'])} of {count} faults"
    if not int(result["updates"]) == found["steps"] == _STEPS:
        return f"it made {result['updates']} updates, and said {found['steps']}, of {_STEPS}"
    if strategy == "ps":
        applied = float(result["weight 0"].item())
        return "" if applied == _STEPS else f"{applied:g} updates were applied, of {_STEPS}"
    differing = [name for name, value in expected.items() if not np.array_equal(value, result[name])]
    return f"other numbers: {', '.join(differing)}" if differing else ""


def _train(strategy: str, faults: str, seed: int) -> tuple[dict, dict | None]:
    """Runs a job; returns what the launcher says of it, and what the program has written, if it has."""
    with _directory() as out, _job(strategy, out, faults, seed) as job:
        return _finish(strategy, out, job)


def _kill_launcher(strategy: str, steps: list[int]) -> tuple[dict, dict | None]:
    """As `_train`, of a job whose launcher is killed after so many steps, and that is started by the same command."""
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


def _fill_disk(strategy: str, steps: list[int]) -> tuple[dict, dict | None]:
    """As `_train`, of a job that has no room for its checkpoints for a while after so many steps."""
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
        *(sys.executable, "-m", "launch", "local", *JOBS[strategy][0], f"--max_restarts={2 * _FAULTS}"),
        *(f"--timeout={_DEADLINE}", f"--chaos={faults}", f"--chaos_seed={seed}"),
        *(f"--chaos_report={out / 'chaos.json'}", "--"),
        *(f"{programs.__name__}.chaos_tf2dist", strategy, str(out), str(_STEPS)),
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


def _line(strategy: str, task: str, kind: str, outcome: Outcome) -> str:
    recovery, lost = outcome.recovery or [float("nan")], outcome.lost or [0]
    times = f"{statistics.median(recovery):.1f} s, {max(recovery):.1f} s"
    steps = f"{statistics.mean(lost):.1f}, {max(lost)}"
    met = f"{outcome.right}/{outcome.tried}"
    goodput = statistics.mean(outcome.goodput or [float("nan")])
    return f"{strategy:11}  {task:8}  {kind:4}  {met:>9}  {times:>23}  {steps:>22}  {goodput:7.2f}"
