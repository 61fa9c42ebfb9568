"""Before: a training on parameter servers by this checkout, beside the same one by another checkout of the project.

A machine that others share is a third faster in one minute than in the next, and so is whatever runs on it. Both jobs
are begun, and then one is stopped (SIGSTOP) while the other runs, in turn, a few seconds each: what is compared are
slices of time that follow one another.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from tf2dist.errors import UsageError
from tf2dist.system import linux

_PROGRAM = "benchmarks.programs.ps_tf2dist"
_BATCH = 100
_AGAIN_SECONDS = 0.7  # at the beginning of a slice that are left out: what was under way ends
_JOB_SECONDS = 900  # for both jobs, with the time for which they are stopped

Points = list[tuple[float, int]]  # times in s and the updates that were made by then


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `before` alone has."""
    group = parser.add_argument_group("before")
    group.add_argument("--checkout", required=True, help="directory of the other checkout, as of `git worktree add`")
    group.add_argument(
        "--update", choices=("async", "local_steps", "sync"), default="async", help="which training (default: async)"
    )
    group.add_argument("--steps", type=int, default=20_000, help="updates of each job (default: 20000)")
    group.add_argument(
        "--begin", type=float, default=15.0, help="seconds for a job to import, trace and tune itself (default: 15)"
    )
    group.add_argument("--slice", type=float, default=5.0, help="seconds for which a job runs at a time (default: 5)")


def run(rounds: int, options: argparse.Namespace) -> dict:
    """Prints the rates of each pair of jobs and the geometric mean of their ratios; returns the figures.

    Raises:
      UsageError: an option is out of its range.
      SystemExit: a job failed; what it said is on standard error.
    """
    if not (pathlib.Path(options.checkout) / "benchmarks" / "programs" / "ps_tf2dist.py").is_file():
        raise UsageError(f"--checkout={options.checkout} must be a checkout of this project, with its benchmarks")
    if options.steps < 1 or options.begin < 0 or options.slice <= _AGAIN_SECONDS:
        raise UsageError(f"--steps must be at least 1, --begin at least 0 s and --slice above {_AGAIN_SECONDS} s")
    trees = [pathlib.Path.cwd(), pathlib.Path(options.checkout).resolve()]
    rates: list[list[tuple[int, float]]] = []
    ratios: list[float] = []
    for number in range(rounds):
        rates.append(_pair(trees, number % 2, options))
        found = neighbours(rates[-1])
        if not found:
            raise UsageError(f"--steps={options.steps} are over before two slices of {options.slice:g} s: ask for more")
        ratios += found
        updates = ["/".join(f"{rate:.0f}" for which, rate in rates[-1] if which == job) for job in (0, 1)]
        print(f"updates/s here {updates[0]}, there {updates[1]}: {_mean(found):.3f} times as many", flush=True)
    # Neighbouring pairs share a slice: they are as good as half as many.
    error = statistics.stdev(map(math.log, ratios)) / math.sqrt(len(ratios) / 2) if len(ratios) > 1 else math.nan
    print(f"{options.update}: {_mean(ratios):.3f} +- {error:.3f} times as many, of {len(ratios)} pairs of slices")
    return {"update": options.update, "rates": rates, "ratios": ratios, "ratio": _mean(ratios), "error": error}


def neighbours(rates: list[tuple[int, float]]) -> list[float]:
    """Ratios of the rate of job 0 to that of job 1 in slices that follow one another.

    Args:
      rates: of each slice, whose it was, 0 or 1, and the updates a second.
    """
    pairs = itertools.pairwise(rates)
    return [a / b if first == 0 else b / a for (first, a), (second, b) in pairs if first != second]


def rate(points: Points, since: float, until: float) -> float | None:
    """Updates a second in this time; None if too few were seen, or the training ended in it."""
    inside = [point for point in points if since <= point[0] <= until]
    if len(inside) < 3 or inside[-1] == points[-1]:
        return None
    (began, low), (ended, high) = inside[0], inside[-1]
    return (high - low) / (ended - began)


def _mean(ratios: list[float]) -> float:
    return statistics.geometric_mean(ratios)


def _pair(trees: list[pathlib.Path], first: int, options: argparse.Namespace) -> list[tuple[int, float]]:
    """Runs a job of each checkout; returns whose each slice was, and its rate."""
    slices: list[tuple[int, float, float]] = []
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        outs = [pathlib.Path(directory, str(number)) for number in (0, 1)]
        jobs = []
        for tree, out in zip(trees, outs, strict=True):
            jobs.append(stack.enter_context(_job(tree, out, options)))
            time.sleep(options.begin)  # slices without updates are left out
            _send(jobs[-1], signal.SIGSTOP)
        turn = first
        while all(job.poll() is None for job in jobs):
            _send(jobs[turn], signal.SIGCONT)
            began = time.perf_counter()
            with contextlib.suppress(subprocess.TimeoutExpired):
                jobs[turn].wait(options.slice)
            slices.append((turn, began + _AGAIN_SECONDS, time.perf_counter()))
            _send(jobs[turn], signal.SIGSTOP)
            turn = 1 - turn
        for job in jobs:
            _send(job, signal.SIGCONT)
        for job in jobs:
            if job.wait():
                raise SystemExit(job.returncode)
        points = [json.loads((out / "coordinator.json").read_text()) for out in outs]
    rates = [(turn, rate(points[turn], since, until)) for turn, since, until in slices]
    return [(turn, found) for turn, found in rates if found is not None]


@contextlib.contextmanager
def _job(tree: pathlib.Path, out: pathlib.Path, options: argparse.Namespace) -> Iterator[subprocess.Popen]:
    """A job of the program as that checkout has it; nothing of it is left afterwards."""
    out.mkdir()
    launcher = [sys.executable, "-m", "launch", "local", "--ps=1", "--workers=2", f"--timeout={_JOB_SECONDS}", "--"]
    command = [*launcher, _PROGRAM, str(out), str(options.steps), str(_BATCH), options.update]
    with subprocess.Popen(command, cwd=tree, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            pids = [process.pid, *linux.descendants(process.pid)]
            if process.poll() is None:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def _send(job: subprocess.Popen, signum: signal.Signals) -> None:
    """Stops a job, its launcher first, or has it go on, its launcher last."""
    pids = [job.pid, *linux.descendants(job.pid)]
    for pid in pids if signum == signal.SIGSTOP else reversed(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
