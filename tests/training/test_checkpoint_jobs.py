"""Every process of a job is killed in the middle, on every strategy; started again, it goes on where it was."""

import json
import os
import time

import numpy as np
import pytest

import tf2dist
from tests.conftest import sampled
from tests.models import OPTIMIZERS, classifier, data, weights
from tests.programs import __name__ as PROGRAMS
from tf2dist.training import checkpoint_files
from tf2dist.training.status_file import read_status

LAYOUTS = {
    "one": [],
    "mirrored": [],
    "central": [],
    "multiworker": ["--workers=2"],
    "ps": ["--ps=2", "--workers=2"],
}
EPOCHS, PER_EPOCH = 30, 40
pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


@pytest.fixture(scope="module")
def expected(tf):
    """The weights of a training in this process that nothing has ended."""
    with tf2dist.make_strategy("one").scope():
        model = classifier(OPTIMIZERS["adam"]())
    tf2dist.fit(model, data(), batch_size=16, seed=3, epochs=EPOCHS, steps_per_epoch=PER_EPOCH)
    return weights(model)


@pytest.mark.parametrize("strategy", sampled(LAYOUTS, (), ("multiworker", "ps")))
def test_killed_and_started_again(launched, tmp_path, expected, strategy):
    program = (f"{PROGRAMS}.resume", strategy, str(tmp_path))
    job = launched(LAYOUTS[strategy], *program)
    directory, saved = tmp_path / "checkpoints", [0]
    job.until("under_way")
    deadline = time.monotonic() + 60
    while saved[-1] < 180 and time.monotonic() < deadline:  # it is written while the job goes on
        saved = [0, *map(checkpoint_files.step_of, checkpoint_files.list_checkpoints(directory))]
    job.kill()
    assert saved[-1] >= 180
    (tmp_path / "go_on").touch()
    job = launched(LAYOUTS[strategy], *program)
    status, error = job.ends("launcher")
    assert status == 0, error
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["updates"] == EPOCHS * PER_EPOCH
    assert result["epochs"] == EPOCHS - (saved[-1] - 1) // PER_EPOCH  # one that was not ended is ended again
    assert [name for name in os.listdir(directory) if name.endswith(".part")] == []
    assert read_status(directory)[0] == "done"
    if strategy != "ps":  # asynchronous workers do not go the same way twice
        for ours, theirs in zip(result["weights"], expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)


def test_peers_with_steps_and_optimizers_of_their_own(launched, tmp_path):
    """Callbacks of the first peer alone keep no other waiting; after a restart all peers have all optimizers' state."""
    ends = {}
    for name, runs in (("at once", [("3", "-1", 0)]), ("in two", [("3", "4", 1), ("3", "-1", 0)])):
        out = tmp_path / name
        out.mkdir()
        for epochs, last_batch, expected in runs:
            job = launched(
                ["--workers=2", "--max_restarts=0"], f"{PROGRAMS}.two_optimizers", str(out), epochs, last_batch
            )
            status, error = job.ends("launcher")
            assert (status != 0) == expected, error
        ends[name] = [json.loads((out / f"peer-{rank}.json").read_text()) for rank in range(2)]
    for first, second in ends.values():
        assert first == second
    for ours, expected in zip(ends["in two"][0]["state"], ends["at once"][0]["state"], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)
    assert ends["in two"][0]["loss"][-1] == pytest.approx(ends["at once"][0]["loss"][-1], rel=1e-4)


def test_an_evaluator_by_our_launcher(launched, tmp_path):
    """It evaluates what the job saves, last what it ended with, and ends with it."""
    report, logs = tmp_path / "report.json", tmp_path / "logs"
    flags = ["--strategy=ps", "--dataset=digits", "--steps=1500", f"--logdir={logs}", f"--report={report}"]
    job = launched(["--ps=1", "--workers=2", "--evaluator"], "trainers.mnist", *flags)
    _, error = job.processes["launcher"].communicate(timeout=200)
    assert job.processes["launcher"].returncode == 0, error
    lines = [line for line in error.splitlines() if line.startswith("[evaluator 0] ")]
    assert lines[-1].startswith("[evaluator 0] evaluation after 1500 updates: ")
    accuracy = json.loads(report.read_text())["test_accuracy"]
    assert f"accuracy {accuracy:.4f}" in lines[-1]
    assert list((logs / "evaluation").glob("events*"))
