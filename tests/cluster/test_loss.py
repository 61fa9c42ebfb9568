"""Tasks of a parameter server job, started by hand, of which one is killed in the middle."""

import json
import os
import subprocess
import sys
import time

import pytest

from launch import ports
from tests.models import ROWS
from tf2dist import Cluster, Task

DEADLINE = 150.0  # seconds
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def job(tmp_path):
    """Starts chief, two workers and a ps, and waits until they are well under way; yields processes by task."""
    with ports.hold(4) as (chief, first, second, ps):
        at = "127.0.0.1:{}".format
        jobs = {"chief": (at(chief),), "worker": (at(first), at(second)), "ps": (at(ps),)}
        cluster = Cluster(jobs, Task("chief", 0))
        processes = {}
        try:
            for task in reversed(cluster.tasks):
                processes[str(task)] = subprocess.Popen(
                    [sys.executable, "-m", "tests.cluster.programs.long", str(tmp_path)],
                    env={**os.environ, "TF_CONFIG": cluster.at(task).to_tf_config()},
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )  # fmt: skip
            deadline = time.monotonic() + DEADLINE
            while not (tmp_path / "under_way").exists():
                assert time.monotonic() < deadline
                assert processes["chief 0"].poll() is None, processes["chief 0"].communicate()
                time.sleep(0.02)
            yield processes
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()


def ends(process):
    """Status and standard error of a process that must end by itself."""
    _, error = process.communicate(timeout=DEADLINE)
    return process.returncode, error


def test_a_worker_is_lost_and_the_job_goes_on(job, tmp_path):
    """Exactly as many updates as asked for, and every validation saw every example, though results went with it."""
    job["worker 1"].kill()
    status, error = ends(job["chief 0"])
    assert status == 0, error
    assert [line for line in error.splitlines() if line.startswith("tf2dist: ")] == [
        line for line in error.splitlines() if "worker 1 at" in line and line.endswith("the job goes on without it")
    ]
    assert ends(job["ps 0"]) == (0, "")
    assert ends(job["worker 0"]) == (0, "")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["updates"] == 40 * 60
    assert result["epochs"] == 40
    for accuracy in result["history"]["val_accuracy"]:
        assert abs(accuracy * ROWS - round(accuracy * ROWS)) < 1e-3


@pytest.mark.slow
def test_a_parameter_server_is_lost_and_the_job_ends(job):
    job["ps 0"].kill()
    status, _ = ends(job["chief 0"])
    assert status == 1
    for name in ("worker 0", "worker 1"):
        status, error = ends(job[name])
        assert status == 1
        assert f"tf2dist: {name}: chief 0 at " in error


@pytest.mark.slow
def test_the_coordinator_is_lost_and_the_servers_end(job):
    job["chief 0"].kill()
    for name in ("ps 0", "worker 0", "worker 1"):
        status, error = ends(job[name])
        assert status == 1
        assert error.count("\n") == 1
        assert f"tf2dist: {name}: chief 0 at " in error


@pytest.mark.slow
def test_all_workers_are_lost_and_the_job_ends(job):
    job["worker 0"].kill()
    job["worker 1"].kill()
    status, error = ends(job["chief 0"])
    assert status == 1
    assert "is gone: it ended before the job was done" in error
