"""Tasks of a parameter server job, started by hand, of which one is killed in the middle."""

import json
import re
import signal

import pytest

from tests.models import ROWS
from tests.programs import __name__ as PROGRAMS
from tf2dist.system import linux

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def job(by_hand, tmp_path):
    """Chief, two workers and a ps, well under way."""
    job = by_hand(f"{PROGRAMS}.long", str(tmp_path))
    job.until("under_way")
    return job


@pytest.mark.slow
def test_a_worker_is_lost_and_the_job_goes_on(job, tmp_path):
    """Exactly as many updates as asked for, and every validation saw every example, though results went with it."""
    job.processes["worker 1"].kill()
    status, error = job.ends("chief 0")
    assert status == 0, error
    said = [line for line in error.splitlines() if line.startswith("tf2dist: ")]
    loss, *lacking = [line for line in said if "worker 1 at" in line] + [s for s in said if "worker 1 at" not in s]
    assert loss.endswith("the job goes on without it")
    assert all(re.fullmatch(r"tf2dist: epoch \d+ made 60 updates, and its logs have .*", s) for s in lacking), said
    assert job.ends("ps 0") == (0, "")
    assert job.ends("worker 0") == (0, "")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["updates"] == 20 * 60
    assert result["epochs"] == 20
    for accuracy in result["history"]["val_accuracy"]:
        assert abs(accuracy * ROWS - round(accuracy * ROWS)) < 1e-3


def result_without_worker_1(job, directory):
    """Kills worker 1 in the middle; the coordinator must end well. Returns what the program has saved."""
    job.until("under_way")
    job.processes["worker 1"].kill()
    status, error = job.ends("chief 0")
    assert status == 0, error
    return json.loads((directory / "result.json").read_text())


@pytest.mark.slow
def test_a_worker_is_lost_between_two_counts_of_an_update(by_hand, tmp_path):
    """The optimizer's count of updates is that of what was applied, also where the worker had told one of them only."""
    job = by_hand(f"{PROGRAMS}.torn", str(tmp_path), "0.1")
    result = result_without_worker_1(job, tmp_path)
    assert result["updates"] >= 40
    assert result["applied"] == [result["updates"] - 1] * 3  # the one that was only counted


@pytest.mark.slow
def test_a_worker_is_lost_while_it_computes_gradients(by_hand, tmp_path):
    """The update that it was about to make is neither applied nor counted; weights and counts agree."""
    job = by_hand(f"{PROGRAMS}.counted_batches", str(tmp_path), "0.1")
    result = result_without_worker_1(job, tmp_path)
    assert result["updates"] == 40
    assert result["applied"] == [40] * 3


@pytest.mark.exhaustive
def test_a_worker_is_lost_in_the_last_epoch(by_hand, tmp_path):
    """What it had begun is begun again by the other, with nothing left to make up for steps applied twice."""
    job = by_hand(f"{PROGRAMS}.long", str(tmp_path), "18")
    assert result_without_worker_1(job, tmp_path)["updates"] == 20 * 60


def lost_before_it_is_connected_to(launched, directory, *layout, noticed):
    """Kills worker 1 when it serves and the coordinator has not connected to it; returns status and output."""
    program = f"{PROGRAMS}.lost_at_start", str(directory), "noticed" if noticed else "unnoticed"
    job = launched(["--ps=1", "--workers=2", *layout], *program)
    job.until("all_serve")
    linux.kill(job.pids("worker 1"), signal.SIGKILL)
    (directory / "lost").write_text("")
    return job.ends("launcher")


@pytest.mark.slow
@pytest.mark.parametrize("noticed", [True, False])
def test_a_worker_is_lost_just_before_the_coordinator_connects(launched, tmp_path, noticed):
    """The job begins without it; or TensorFlow waits for it, and it for the coordinator, which must notice it."""
    status, error = lost_before_it_is_connected_to(launched, tmp_path, noticed=noticed)
    assert status == 0, error
    assert (tmp_path / "updates").read_text() == str(3 * -(-ROWS // 16))


@pytest.mark.slow
def test_a_worker_that_does_not_come_back_before_the_coordinator_connects(launched, tmp_path, monkeypatch):
    monkeypatch.setenv("TF2DIST_START_TIMEOUT", "15")
    status, error = lost_before_it_is_connected_to(launched, tmp_path, "--max_restarts=0", noticed=False)
    assert status == 1
    assert "worker 1 at 127.0.0.1:" in error.splitlines()[-1], error
    assert "Traceback" not in error


@pytest.mark.slow
def test_the_job_begins_without_a_worker_that_does_not_come_back(launched, tmp_path):
    status, error = lost_before_it_is_connected_to(launched, tmp_path, "--max_restarts=0", noticed=True)
    assert status == 0, error
    assert (tmp_path / "updates").read_text() == str(3 * -(-ROWS // 16))


@pytest.mark.slow
def test_a_parameter_server_is_lost_and_the_job_ends(job):
    job.processes["ps 0"].kill()
    status, _ = job.ends("chief 0")
    assert status == 1
    for name in ("worker 0", "worker 1"):
        status, error = job.ends(name)
        assert status == 1
        assert f"tf2dist: {name}: chief 0 at " in error


@pytest.mark.slow
def test_the_coordinator_is_lost_and_the_servers_end(job):
    job.processes["chief 0"].kill()
    for name in ("ps 0", "worker 0", "worker 1"):
        status, error = job.ends(name)
        assert status == 1
        assert error.count("\n") == 1
        assert f"tf2dist: {name}: chief 0 at " in error


@pytest.mark.slow
def test_a_worker_that_is_stopped_holds_up_nobody(by_hand, tmp_path):
    """Epochs, validation, evaluation and prediction end without it, and the counts are exact."""
    job = by_hand(f"{PROGRAMS}.stopped_worker", str(tmp_path))
    for what, number in (("stop", signal.SIGSTOP), ("go on", signal.SIGCONT)) * 2:
        where = "training" if not (tmp_path / "go on in training done").exists() else "evaluation"
        job.until(f"{what} in {where}")
        job.processes["worker 1"].send_signal(number)
        (tmp_path / f"{what} in {where} done").touch()
    status, error = job.ends("chief 0")
    assert status == 0, error
    assert "workers that are slow or stopped hold up executions (1), which others are to make" in error.splitlines()
    assert "the job goes on without it" not in error  # it has not counted as lost
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["updates"], result["validations"], result["predicted"]) == (4 * 60, 4, True)
    for name, value in result["evaluated"].items():
        assert abs(value - result["of arrays"][name]) < 1e-5


@pytest.mark.slow
def test_all_workers_are_lost_and_the_job_ends(by_hand, tmp_path, monkeypatch):
    monkeypatch.setenv("TF2DIST_WORKERS_GRACE", "3")
    job = by_hand(f"{PROGRAMS}.long", str(tmp_path))
    job.until("under_way")
    job.processes["worker 0"].kill()
    job.processes["worker 1"].kill()
    status, error = job.ends("chief 0")
    assert status == 1
    *lost, last = (line for line in error.splitlines() if line.startswith("tf2dist: "))
    _, waits = sorted(lost, key=lambda line: "no worker is left" in line)  # each is written by a thread of its own
    assert error.splitlines()[-1] == last  # of the two, the one that was lost last
    assert last.startswith("tf2dist: worker ")
    assert " is gone: " in last
    assert "goes on" not in last
    assert last.endswith("; the workers did not come back within 3 s")
    assert waits.endswith("; no worker is left, the job waits 3 s for them to come back")


@pytest.mark.slow
def test_all_workers_are_lost_and_come_back(job, tmp_path):
    job.processes["worker 0"].kill()
    job.processes["worker 1"].kill()
    job.restart("worker 0")
    job.restart("worker 1")
    status, error = job.ends("chief 0")
    assert status == 0, error
    ours = [line for line in error.splitlines() if line.startswith("tf2dist: ")]
    assert len(ours) == 4, error  # each is lost, and is back
    assert all(line.endswith(" is back") for line in ours[2:])
    assert json.loads((tmp_path / "result.json").read_text())["updates"] == 20 * 60
