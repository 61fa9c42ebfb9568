"""`python -m benchmarks chaos`: what it takes for a training that has come through, and a training that has."""

import json

import numpy as np
import pytest

from benchmarks import chaos
from tests.benchmarks.commands import run

QUIET = {"updates": np.array(800), "weight 0": np.array([[1.0]])}
FOUND = {"status": 0, "steps": 800, "faults": [{}]}


@pytest.mark.parametrize(
    ("strategy", "found", "result", "why"),
    [
        ("one", {}, {}, ""),
        ("ps", {}, {"weight 0": np.array([[800.0]])}, ""),
        ("ps", {}, {"weight 0": np.array([[801.0]])}, "801 updates were applied, of 800"),
        ("one", {}, {"weight 0": np.array([[1.0000001]])}, "other numbers: weight 0"),
        ("one", {}, {"updates": np.array(801)}, "it made 801 updates, and said 800, of 800"),
        ("one", {"steps": 799}, {}, "it made 800 updates, and said 799, of 800"),
        ("one", {"faults": []}, {}, "it met no fault"),
        ("one", {"status": 137}, {}, "it ended with status 137"),
        ("one", {}, None, "it has written no result"),
    ],
)
def test_what_has_come_through(strategy, found, result, why):
    result = None if result is None else QUIET | result
    assert chaos._wrong(strategy, FOUND | found, result, QUIET) == why


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_peer_that_is_killed(tmp_path):
    report = tmp_path / "report.json"
    done = run("chaos", "--moments=1", "--strategies=multiworker", "--kinds=kill", f"--report={report}")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 + 2
    figures = json.loads(report.read_text())
    assert list(figures) == ["multiworker worker-0 kill", "multiworker worker-1 kill"]
    for found in figures.values():
        assert found["tried"] == found["right"] == 1
        assert 0 < found["goodput"][0] < 1


@pytest.mark.parametrize("option", ["--moments=0", "--jobs=0", "--strategies=ps,all", "--kinds=burn"])
def test_wrong_options(option):
    done = run("chaos", option)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
