"""Jobs that get SIGTERM save and end with 75, or are started again; what they end with is as if nothing had been."""

import json
import os
import random
import signal
import time

import numpy as np
import pytest

from tests.conftest import sampled
from tests.programs import __name__ as PROGRAMS
from tf2dist.training import checkpoint_files
from tf2dist.training.status_file import read_status

EPOCHS, PER_EPOCH = 6, 40  # of the program
STEPS = EPOCHS * PER_EPOCH
LAYOUTS = {
    "one": [],
    "mirrored": [],
    "central": [],
    "multiworker": ["--workers=2"],
    "ps": ["--ps=1", "--workers=2"],
    "sync": ["--ps=1", "--workers=2"],
}
TASKS = {
    "multiworker": ("worker 0", "worker 1"),
    "ps": ("chief 0", "worker 1", "ps 0"),
    "sync": ("chief 0", "worker 0", "ps 0"),
}
RANDOM_MOMENTS = 20
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


@pytest.fixture
def train(launched, tmp_path, monkeypatch):
    """train(strategy, name, *moments, options): what the program of `tests.programs.preempted` ends with.

    Returns statuses of all its runs, its result, and how often each epoch has ended; its files are in `name`. What has
    no launcher is started again here as long as it ends with 75.
    """
    monkeypatch.setenv("TF2DIST_PREEMPTIBLE", "1")

    def train(strategy, name, *moments, options=()):
        out = tmp_path / name
        out.mkdir(exist_ok=True)
        statuses, ended, said = [], [], ""
        layout = [*LAYOUTS[strategy], *options] if LAYOUTS[strategy] else []
        while not statuses or (statuses[-1] == 75 and not layout):
            job = launched(layout, f"{PROGRAMS}.preempted", strategy, str(out), *moments)
            printed, error = job.processes["launcher"].communicate(timeout=600)
            statuses.append(job.processes["launcher"].returncode)
            ended += [line.rpartition("epoch ")[2] for line in printed.splitlines() if "epoch" in line]
            said += error
            assert job.left() == []
        assert [path for path in os.listdir(out / "checkpoints") if path.endswith(".part")] == []
        result = out / "result.json"
        return statuses, json.loads(result.read_text()) if result.exists() else None, ended, said

    return train


def check(found, expected, strategy):
    """A job that was asked to stop has ended as one that was not."""
    assert found["updates"] == expected["updates"] == STEPS
    if strategy != "ps":  # asynchronous workers do not go the same way twice
        assert found["logs"] == expected["logs"]
        for ours, theirs in zip(found["weights"], expected["weights"], strict=True):
            np.testing.assert_array_equal(ours, theirs)


FEW = ("17", "validation", "after")
MOMENTS = ("17", "validation", "96", "epoch end", "183", "training end", "after")


@pytest.mark.parametrize("wanted", [FEW, pytest.param(MOMENTS, marks=pytest.mark.exhaustive)], ids=["few", "many"])
@pytest.mark.parametrize("strategy", sampled(LAYOUTS, (), ("ps",)))
def test_asked_again_and_again(train, tmp_path, strategy, wanted):
    """In an execution, a validation, between epochs, at the end and after it; each epoch ends once."""
    _, expected, ended, said = train(strategy, "undisturbed")
    tasks = TASKS.get(strategy, ("solo",))
    moments = [f"{tasks[number % len(tasks)]}:{moment}" for number, moment in enumerate(wanted)]
    if strategy in ("ps", "sync"):  # what a server is asked after the training changes nothing
        last = [moment for moment in wanted if moment in ("training end", "after")]
        moments[-len(last) :] = [f"{tasks[0]}:{moment}" for moment in last]
    statuses, found, again, said = train(strategy, "disturbed", *moments)
    assert statuses[-1] == 0, said
    check(found, expected, strategy)
    assert sorted(again) == sorted(ended), said
    assert {path.name for path in (tmp_path / "disturbed").glob("asked*")} == {
        f"asked {moment.replace(':', ' ')}" for moment in moments
    }
    if LAYOUTS[strategy]:
        assert statuses == [0], said
        assert said.count("launch: the job is started again") == len(moments), said
    else:
        assert statuses == [75] * len(moments) + [0], said
    assert read_status(tmp_path / "disturbed" / "checkpoints")[0] == "done"


@pytest.mark.parametrize("task", sampled(TASKS["multiworker"], (), ("worker 1",)))
def test_a_peer_that_is_asked_while_all_make_an_evaluation_after_the_training(train, task):
    """It ends at once, wherever it is, and the others do not wait for it."""
    statuses, found, _, said = train("multiworker", "job", f"{task}:evaluation")
    assert statuses == [0], said
    assert said.count("launch: the job is started again") == 1, said
    assert found["updates"] == STEPS


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", LAYOUTS)
def test_at_random_moments(train, strategy):
    _, expected, ended, _ = train(strategy, "undisturbed")
    draw, tasks = random.Random(15), TASKS.get(strategy, ("solo",))
    steps = sorted(draw.sample(range(STEPS - 10), RANDOM_MOMENTS))
    statuses, found, again, said = train(
        strategy, "disturbed", *(f"{draw.choice(tasks)}:{step}" for step in steps)
    )  # fmt: skip
    assert statuses[-1] == 0, said
    check(found, expected, strategy)
    assert sorted(again) == sorted(ended), said


@pytest.mark.parametrize("strategy", sampled(["multiworker", "ps"], (), ("ps",)))
def test_the_status_of_a_job_that_is_not_started_again(train, tmp_path, strategy):
    """It says that another job is to go on, and the checkpoint has the step after which it has stopped."""
    statuses, found, _, said = train(strategy, "job", f"{TASKS[strategy][-1]}:57", options=["--max_restarts=0"])
    assert (statuses, found) == ([75], None), said
    assert "was asked to stop; the job saves after the step that is under way, and ends" in said
    *first, last = checkpoint_files.list_checkpoints(tmp_path / "job" / "checkpoints")
    assert [checkpoint_files.step_of(path) for path in first] == ([0] if strategy == "ps" else [])
    assert 57 <= checkpoint_files.step_of(last) <= 57 + 4 * 5 + 5  # executions of 5, of which 4 may be under way
    assert f"has saved step {checkpoint_files.step_of(last)} in " in said
    assert read_status(tmp_path / "job" / "checkpoints")[0] == "preempted"
    assert train(strategy, "job", f"{TASKS[strategy][-1]}:57")[1]["updates"] == STEPS


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_to_the_launcher(launched, tmp_path, signum, status):
    """The job saves and is not started again here: whoever has ended the launcher decides."""
    job = launched(["--ps=1", "--workers=2"], f"{PROGRAMS}.resume", "ps", str(tmp_path))
    job.until("under_way")
    (tmp_path / "go_on").touch()
    job.processes["launcher"].send_signal(signum)
    found, error = job.ends("launcher")
    assert found == status, error
    assert "started again (" not in error
    assert job.left() == []
    assert read_status(tmp_path / "checkpoints")[0] == "preempted"


def test_data_that_other_processes_make(launched, tmp_path):
    """They live until the job has saved, though the launcher ends all that the job has started."""
    job = launched(["--workers=1"], f"{PROGRAMS}.made_elsewhere", str(tmp_path))
    job.until("under_way")
    job.processes["launcher"].terminate()
    status, error = job.ends("launcher")
    assert status == 75, error
    assert checkpoint_files.list_checkpoints(tmp_path / "checkpoints")
    assert job.left() == []


def test_data_whose_processes_are_asked_to_stop_as_well(launched, tmp_path):
    """The job saves if it still can, and is to be started again in any case."""
    job = launched(["--workers=1", "--max_restarts=0"], f"{PROGRAMS}.made_elsewhere", str(tmp_path), "group")
    status, error = job.ends("launcher")
    assert status == 75, error
    assert ("has saved step" in error) != ("came before it had saved" in error)
    assert read_status(tmp_path / "checkpoints")[0] == "preempted"
    assert job.left() == []


def test_a_trainer_that_saves_nothing_ends_as_ever(launched):
    job = launched([], "trainers.pi", "--samples=1000000000000")
    process = job.processes["launcher"]
    while process.poll() is None and not handles(process.pid, signal.SIGTERM):
        time.sleep(0.02)
    process.terminate()
    _, error = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, error


def handles(pid, signum):
    """Has the process a handler of this signal?"""
    with open(f"/proc/{pid}/status") as file:
        [caught] = [int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")]
    return bool(caught >> (signum - 1) & 1)
