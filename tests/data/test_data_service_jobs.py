"""Data workers of real jobs: each element once a pass; one that is killed is started again, and the job goes on."""

import collections
import json
import re
import signal

import numpy as np
import pytest

from tests.jobs import run_program
from tf2dist.system import linux

LAYOUTS = {"ps": ["--ps=1", "--workers=2"], "one": ["--workers=1"]}
pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module", params=LAYOUTS)
def results(request, tmp_path_factory):
    """What the program found out in a job with two data workers."""
    out = tmp_path_factory.mktemp("service") / "results.json"
    run_program([*LAYOUTS[request.param], "--data_workers=2"], "data_service", request.param, out)
    return json.loads(out.read_text())


def test_each_element_is_used_once_a_pass(results):
    found = {name: times for name, times in results.items() if name.startswith("rows")}
    assert len(found) >= 2
    for name, times in found.items():
        np.testing.assert_allclose(times, 3, rtol=1e-4, err_msg=name)
    assert results["evaluated"] == pytest.approx(np.mean(np.arange(96.0) ** 2), rel=1e-5)


def test_data_workers_make_the_elements_and_this_process_what_calls_python(results):
    assert len(results["processes"]) == 2
    assert results["this process"] not in results["processes"]
    assert results["processes, python"] == [results["this process"]]


def test_elements_of_unlike_shapes_come_as_they_are(results):
    assert results["unlike shapes"] == [[n, list(range(n % 5)), str(n)] for n in range(96)]


def test_what_several_data_workers_cannot_do_is_refused(results):
    assert "2 data workers make its elements in any order" in results["predicted"]
    assert "an operation Batch, which each data worker would do" in results["batched before"]


def kill_one(job, name, task):
    job.until(name)
    (pid,) = job.pids(task)
    linux.kill([pid], signal.SIGKILL)
    (job.directory / f"{name} killed").touch()


@pytest.mark.parametrize("strategy", LAYOUTS)
def test_a_data_worker_that_dies_is_started_again(launched, tmp_path, strategy):
    job = launched(
        [*LAYOUTS[strategy], "--data_workers=2"], "tests.programs.lost_data_workers", strategy, str(tmp_path)
    )
    kill_one(job, "reads", "data_worker 0")
    kill_one(job, "trains", "data_worker 1")
    status, error = job.ends("launcher")
    assert status == 0, error
    assert "when a data worker is lost, the job goes on" in error
    assert len(re.findall(r"data_worker [01] at \S+ is back", error)) == 2
    found = json.loads((tmp_path / "results.json").read_text())
    with_loss, whole = found["passes"]
    assert max(collections.Counter(with_loss).values()) == 1
    assert len(with_loss) > 1500  # without those that it had in hand
    assert sorted(whole) == list(range(2000))
    assert (found["updates"], found["epochs"]) == (6 * 40, 6)


def test_a_data_worker_that_is_not_started_again_ends_the_job(launched, tmp_path):
    layout = ["--workers=1", "--data_workers=2", "--max_restarts=0"]
    job = launched(layout, "tests.programs.lost_data_workers", "one", str(tmp_path))
    kill_one(job, "reads", "data_worker 1")
    status, error = job.ends("launcher")
    assert status == 128 + signal.SIGKILL
    assert re.search(r"launch: data_worker 1 \(pid \d+\) failed first, killed by SIGKILL", error)
