"""A wrong command is told in one line, whichever it is."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "command",
    [
        "tf2dist.data.tfrecord --dataset=synthetic --out=gs://bucket/x",
        "tf2dist.convert_checkpoint gs://bucket/x out.keras --model=x.keras",
        "tf2dist.convert_checkpoint . gs://bucket/x.keras --model=x.keras",
        "launch local --logs=gs://bucket/x -- trainers.hello",
        "benchmarks fit --report=gs://bucket/x",
    ],
)
def test_urls_are_refused_in_one_line(command, tmp_path):
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", *command.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "gs://bucket/x" in done.stderr
    assert " is a URL, and files are read and written on local" in done.stderr
    assert list(tmp_path.iterdir()) == []


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
