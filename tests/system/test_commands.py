"""A wrong command is told in one line, whichever it is."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "command",
    ["tf2dist.migrate", "tf2dist.doctor", "tf2dist.data.tfrecord", "tf2dist.convert_checkpoint", "benchmarks"],
)
def test_a_wrong_command_gets_one_line(command):
    command = [sys.executable, "-m", command, "--nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith(f"python -m {command[2]}: error: ")
    assert done.stderr.endswith("; see --help\n")
