"""How long a job takes to its first step, and how fast it is, against the number of its workers on this machine."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

WORKERS = (1, 2, 4, 8, 16)
STEPS = 400
_LIMIT = 600.0


def run(rounds: int) -> dict:
    """Prints a table; returns seconds to the first step, and steps a second after it, by number of workers."""
    figures = {}
    print(f"1 ps, a chief and N workers on {os.cpu_count()} cores; digits, 784-500-10, {STEPS} updates of 128 examples")
    print(f"workers  first step   updates/s, tracing and evaluation included   (median of {rounds})", flush=True)
    for workers in WORKERS:
        found = [_job(workers) for _ in range(rounds)]
        first, rate = (statistics.median(column) for column in zip(*found, strict=True))
        figures[workers] = {"first_step_seconds": first, "updates_per_second": rate}
        print(f"{workers:7}  {first:8.1f} s   {rate:9.0f}", flush=True)
    return figures


def _job(workers: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report.json")
        command = ["trainers.mnist", "--strategy=ps", f"--workers={workers}", "--dataset=digits", f"--steps={STEPS}"]
        subprocess.run(
            [sys.executable, "-m", *command, f"--report={report}"],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=_LIMIT,
        )
        with open(report) as file:
            found = json.load(file)
    return found["first_step_seconds"], found["steps"] / found["seconds"]
