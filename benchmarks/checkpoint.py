"""Checkpoints: how long steps stand still while a large table is saved, at once, in the background and by servers."""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from tf2dist.errors import UsageError

_PROGRAM = "benchmarks.programs.checkpoint_tf2dist"
_DEADLINE = 600.0  # seconds for one job
_MODES = ("at_once", "in_background", "sharded")
_LAYOUTS = {"one": [], "ps": ["launch", "local", "--ps=2", "--workers=1", "--"]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `checkpoint` alone has."""
    group = parser.add_argument_group("checkpoint")
    group.add_argument("--megabytes", type=int, default=1024, help="of the table that is saved (default: 1024)")
    group.add_argument(
        "--directory", help="where checkpoints are written, on the disk that counts; else a temporary one"
    )


def run(rounds: int, options: argparse.Namespace) -> dict:
    """Prints a table of medians, a line for each kind of checkpoint; returns the figures.

    Raises:
      UsageError: an option is out of its range.
      SystemExit: a job failed; what it said is on standard error.
    """
    if options.megabytes < 1:
        raise UsageError(f"--megabytes={options.megabytes} must be at least 1")
    if options.directory is not None and not pathlib.Path(options.directory).is_dir():
        raise UsageError(f"--directory={options.directory} must be a directory")
    print(f"{options.megabytes} MB of weights (median of {rounds}); two servers and a worker under ps")
    print("strategy  checkpoint     a step    the longest one  of at_once's  written within  memory of the process")
    figures: dict[str, list] = {}
    for strategy in _LAYOUTS:
        for number in range(rounds):
            for mode in _MODES[number % 3 :] + _MODES[: number % 3]:
                figures.setdefault(f"{strategy} {mode}", []).append(_measure(strategy, mode, options))
        slowest = statistics.median(f["pause"] for f in figures[f"{strategy} at_once"])
        for mode in _MODES:
            found = figures[f"{strategy} {mode}"]
            step, pause, written, memory = (
                statistics.median(f[name] for f in found) for name in ("step", "pause", "written", "memory")
            )
            print(
                f"{strategy:8}  {mode:13}  {step * 1e3:5.1f} ms  {pause:8.3f} s       {pause / slowest:6.3f}        "
                f"{written:6.2f} s        {memory:+6.0f} MB",
                flush=True,
            )
    return figures


def _measure(strategy: str, mode: str, options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        command = [
            sys.executable,
            "-m",
            *_LAYOUTS[strategy],
            _PROGRAM,
            directory,
            strategy,
            str(options.megabytes),
            mode,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE, check=False)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            raise SystemExit(done.returncode)
        return json.loads((pathlib.Path(directory) / "figures.json").read_text())
