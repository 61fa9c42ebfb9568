"""Jobs that make no step any more: they say for whom they wait, log the stacks of all tasks, and end or start again."""

import json
import signal
import time

import pytest

from tf2dist.system import linux

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

PEERS, SERVERS = ["--workers=2"], ["--ps=1", "--workers=2"]
SECONDS = 6  # of --stall_timeout


@pytest.fixture
def stalls(launched, tmp_path):
    """stalls(layout, strategy, where, task): a job that stands still there."""

    def start(layout, strategy, where, task="", seconds=SECONDS):
        options = [*layout, f"--stall_timeout={seconds}", "--grace=2"]
        return launched(options, "tests.programs.stalls", strategy, str(tmp_path), where, task)

    return start


def failed(job):
    """Standard error, and the line that says for whom the job has waited, of one that has failed."""
    status, error = job.ends("launcher")
    assert status == 1, error
    found = [line for line in error.splitlines() if "the job has made no step for" in line]
    assert found, error
    assert "failed first, with status 1; its last lines:" in error
    return error, found[0]


def updates(tmp_path):
    return json.loads((tmp_path / "result.json").read_text())["updates"]


@pytest.mark.parametrize("where", ["generator", pytest.param("callback", marks=pytest.mark.exhaustive)])
def test_a_peer_that_others_wait_for_is_named(stalls, where):
    task = "worker 1"
    error, why = failed(stalls(PEERS, "multiworker", where, task))
    named = f"the input of {task} at " if where == "generator" else f"{task} at "
    assert f"and waits for {named}" in why
    of_task = [line for line in error.splitlines() if line.startswith(f"[{task}]")]
    assert any("blocks_for_ever" in line for line in of_task), error
    assert any("the stacks of this task" in line for line in error.splitlines() if line.startswith("[worker 0]"))


@pytest.mark.parametrize("strategy", ["ps", "sync"])
def test_a_dataset_that_the_coordinator_waits_for_is_named(stalls, strategy):
    _, why = failed(stalls(SERVERS, strategy, "dataset", "chief 0"))
    assert "and waits for the input of chief 0, whose next batch has not come" in why


def test_the_job_goes_on_from_its_checkpoint_where_it_may_start_again(stalls, tmp_path):
    job = stalls([*PEERS, "--max_restarts=1"], "multiworker", "generator", "worker 1")
    status, error = job.ends("launcher")
    assert status == 0, error
    assert "launch: the job is started again (0 more to go)" in error
    assert updates(tmp_path) == 40


@pytest.mark.parametrize(
    ("strategy", "task"), [("ps", "ps 0"), pytest.param("sync", "ps 0", marks=pytest.mark.exhaustive)]
)
def test_a_server_that_is_stopped_is_named(stalls, tmp_path, strategy, task):
    job = stalls(SERVERS, strategy, "stopped")
    job.until("under_way")
    linux.kill(job.pids(task), signal.SIGSTOP)
    (tmp_path / "go_on").touch()
    _, why = failed(job)
    assert f"and waits for {task} at " in why
    assert "has not answered" in why


def test_the_first_peer_that_is_stopped_is_named(stalls, tmp_path):
    """TensorFlow's coordination service is in it; the other peer may hear of that first."""
    job = stalls(PEERS, "multiworker", "stopped")
    job.until("under_way")
    linux.kill(job.pids("worker 0"), signal.SIGSTOP)
    (tmp_path / "go_on").touch()
    status, error = job.ends("launcher")
    assert status == 1, error
    assert "launch: worker 1 (pid " in error
    last = error.splitlines()[-1]
    assert "worker 0 at 127.0.0.1:" in last, error
    assert "has not answered" in last, error


@pytest.mark.parametrize("task", ["worker 0", "worker 1"])
def test_a_peer_that_is_silent_for_a_while_ends_no_job(stalls, tmp_path, task):
    """TensorFlow's coordination service, which is in worker 0, would give it 10 s."""
    job = stalls(PEERS, "multiworker", "stopped", seconds=100)
    job.until("under_way")
    linux.kill(job.pids(task), signal.SIGSTOP)
    (tmp_path / "go_on").touch()
    time.sleep(25)
    linux.kill(job.pids(task), signal.SIGCONT)
    status, error = job.ends("launcher")
    assert status == 0, error
    assert updates(tmp_path) == 40


def test_a_worker_that_is_stopped_is_no_stall_while_others_make_steps(stalls, tmp_path):
    job = stalls(SERVERS, "ps", "stopped")
    job.until("under_way")
    linux.kill(job.pids("worker 1"), signal.SIGSTOP)
    (tmp_path / "go_on").touch()
    status, error = job.ends("launcher")
    assert status == 0, error
    assert updates(tmp_path) == 40


def test_sigterm_during_a_stall(stalls, tmp_path):
    """The job was asked to stop, and cannot save: it ends as one that is to be started again."""
    job = stalls([*PEERS, "--max_restarts=0"], "multiworker", "callback", "worker 1")
    job.until("has_stalled")
    linux.kill(job.pids("worker 0"), signal.SIGTERM)
    status, error = job.ends("launcher")
    assert status == 75, error


def test_what_is_slow_and_moves_is_no_stall(stalls, tmp_path):
    """Traces, steps, validations and the count of their batches: each moves on, and together they take much more."""
    job = stalls(PEERS, "multiworker", "slow", seconds=8)
    status, error = job.ends("launcher")
    assert status == 0, error
    assert "no step" not in error
    assert updates(tmp_path) == 40
