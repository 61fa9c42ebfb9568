"""`python -m benchmarks before`: two jobs, one of which is stopped while the other runs."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid

import pytest

from benchmarks import before
from tests.benchmarks.commands import run
from tf2dist.system import linux

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_checkout_beside_itself(tmp_path):
    report = tmp_path / "report.json"
    done = run("before", f"--checkout={ROOT}", "--steps=8000", "--begin=4", "--slice=2", f"--report={report}")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    found = json.loads(report.read_text())
    (rates,) = found["rates"]
    assert {job for job, _ in rates} == {0, 1}
    assert len(found["ratios"]) >= 1
    assert 1 / 3 < found["ratio"] < 3  # the same program


@pytest.mark.slow
def test_nothing_is_left_of_one_that_is_ended():
    """Of its two jobs one at least is stopped, and answers no signal but SIGKILL."""
    command = [sys.executable, "-m", "benchmarks", "before", f"--checkout={ROOT}", "--begin=3", "--slice=1"]
    mark = "BENCHMARK_TEST", uuid.uuid4().hex
    with subprocess.Popen(command, env=os.environ | dict([mark]), stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while len(linux.started_with(*mark)) < 8:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(4)  # the first one is stopped by now
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 30
    while left := linux.started_with(*mark):
        if time.monotonic() > deadline:
            linux.kill(left, signal.SIGKILL)
            pytest.fail(f"processes {left} are left")
        time.sleep(0.1)


def test_neighbouring_slices_are_compared():
    assert before.neighbours([(0, 6.0), (1, 3.0), (0, 9.0), (0, 1.0), (1, 2.0)]) == [2.0, 3.0, 0.5]
    assert before.neighbours([(0, 6.0)]) == []


def test_the_rate_of_a_slice():
    points = [(0.0, 0), (1.0, 10), (2.0, 30), (3.0, 60), (4.0, 61)]
    assert before.rate(points, 0.5, 3.5) == 25.0
    assert before.rate(points, 0.5, 2.5) is None  # two points are no rate
    assert before.rate(points, 0.5, 9.0) is None  # it has ended


WRONG = {
    "--checkout=/nowhere": "--checkout=/nowhere must be a checkout",
    f"--checkout={ROOT} --steps=0": "--steps must be",
    f"--checkout={ROOT} --slice=0.5": "--slice above",
    f"--checkout={ROOT} --begin=-1": "--begin at least 0",
    "--steps=5": "required: --checkout",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_command_is_refused_in_one_line(wrong):
    done = run("before", *wrong.split())
    assert done.returncode == 2
    assert WRONG[wrong] in done.stderr
    assert len(done.stderr.splitlines()) == 1
