"""Benchmarks as they are run by hand."""

import subprocess
import sys


def run(name, *arguments):
    """One round of a benchmark."""
    command = [sys.executable, "-m", "benchmarks", name, "--rounds=1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
