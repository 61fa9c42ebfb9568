"""`python -m benchmarks checkpoint`: a small table is saved, in each way on each strategy."""

import json
import os

import pytest

from tests.benchmarks.commands import run


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_line_for_each(tmp_path):
    disk, report = tmp_path / "disk", tmp_path / "report.json"
    disk.mkdir()
    done = run("checkpoint", "--megabytes=16", f"--directory={disk}", f"--report={report}")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 + 6
    found = json.loads(report.read_text())
    assert len(found) == 6
    assert all(figures["written"] > 0 for (figures,) in found.values())
    assert os.listdir(disk) == []


@pytest.mark.parametrize("wrong", ["--megabytes=0", "--directory=/nowhere"])
def test_a_wrong_command_is_refused_in_one_line(wrong):
    done = run("checkpoint", wrong)
    assert done.returncode == 2
    assert wrong in done.stderr
    assert len(done.stderr.splitlines()) == 1
