"""A worker is killed, or stopped, in the middle of its updates: those that are counted are those in the weights.

TF2DIST_KILLS is how many times it is killed in each kind of training, if more than here.
"""

import json
import os
from typing import NamedTuple

import pytest

from tests.jobs import run_program

MORE = ["async", "momentum", "wide", "wide momentum", "slow", "table", "wide sync", "stopped, local steps"]
SYNC, BATCHES = ("sync", "wide sync", "backup"), 16
KILLS = int(os.environ.get("TF2DIST_KILLS", "0"))
pytestmark = [pytest.mark.timeout(600 + 60 * KILLS), pytest.mark.slow]


class Job(NamedTuple):
    """Parameter servers, times a worker is killed in each mode, and modes (`tests/programs/applied_batches.py`)."""

    servers: int
    kills: int
    modes: list[str]


def notes(directory, job):
    """What the program has noted after each epoch, and about each checkpoint, by mode."""
    kills = max(job.kills, KILLS)
    layout = [f"--ps={job.servers}", "--workers=2", f"--max_restarts={kills * len(job.modes)}"]
    run_program(layout, "applied_batches", directory, kills, job.servers, *job.modes, limit=500 + 60 * KILLS)
    results = json.loads((directory / "result.json").read_text())
    assert [result["killed"] for result in results.values()] == [kills] * len(job.modes)
    assert all(result["given back"] > 0 for mode, result in results.items() if mode == "given back")
    return {mode: (result["momentum"], result["notes"]) for mode, result in results.items()}


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(Job(1, 2, ["slow momentum", "local steps", "given back"]), id="asynchronous"),
        pytest.param(Job(1, 1, ["constraint", "wide average", "wide scaled"]), id="written afterwards"),
        pytest.param(Job(1, 2, ["stopped", "slow stopped"]), id="stopped"),
        pytest.param(Job(1, 2, ["dataset", "dataset, local steps", "dataset, stopped"]), id="dataset"),
        pytest.param(Job(2, 1, ["sync", "backup"]), id="synchronous"),
        pytest.param(Job(1, 1, [*MORE, "sync", "backup"]), id="more", marks=pytest.mark.exhaustive),
    ],
)
def test_what_is_counted_is_what_is_applied(tmp_path, job):
    """In the weights, in the optimizer's state, after each epoch and in each checkpoint: each batch of a pass once."""
    for mode, (momentum, noted) in notes(tmp_path, job).items():
        for note in noted:
            steps = note["steps"]
            passes, more = divmod(steps, BATCHES)
            if mode not in SYNC:  # there an update is made of slices of several batches when a worker was lost
                assert note["batches"][0] == [passes + (batch < more) for batch in range(BATCHES)], mode
            assert note["updates"] == steps, mode
            assert [sum(batches) for batches in note["batches"]] == [steps] * 2, mode
            assert note["batches"][0] == note["batches"][1], mode
            # The n-th update moves the weights by a momentum of n.
            assert note["weights"] == [steps * (steps + 1) / 2 if momentum else steps] * 2, mode
            assert note["whole"], mode


def test_of_own_steps_no_more_than_one_a_kill_is_in_doubt(tmp_path):
    """A step of the user's own applies its gradients before it is counted, and not together with that."""
    for _, noted in notes(tmp_path, Job(1, 2, ["own step"])).values():
        for note in noted:
            passes, more = divmod(note["steps"], BATCHES)
            expected = [passes + (batch < more) for batch in range(BATCHES)]
            assert 0 <= note["updates"] - note["steps"] <= note["killed"]
            for batches in note["batches"]:
                found = sum(abs(n - once) for n, once in zip(batches, expected, strict=True))
                assert found <= note["killed"]


def test_with_several_servers_no_more_than_one_update_a_kill_is_in_doubt(tmp_path):
    """Asynchronously: what a server has counted it tells the others in messages that end with the worker's step."""
    job = Job(2, 1, ["slow"])
    for _, noted in notes(tmp_path, job).values():
        for note in noted:
            assert note["updates"] == note["steps"]
            for batches in note["batches"]:
                assert abs(sum(batches) - note["steps"]) <= note["killed"]
