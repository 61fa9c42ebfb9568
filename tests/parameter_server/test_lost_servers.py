"""Parameter servers are killed while a model is trained: it goes on from its last checkpoint, in the same job."""

import json

import numpy as np
import pytest

from tests.jobs import run_program
from tests.lost_server_cases import CASES, EPOCHS, PER_EPOCH, arguments, outcome

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
EXACT = [name for name in CASES if name != "local steps"]
ALL = pytest.mark.exhaustive
SYNCHRONOUS = [name for name in EXACT if name.startswith("sync")]


@pytest.fixture(autouse=True)
def variables_on_both_servers(monkeypatch):
    monkeypatch.setenv("TF2DIST_ONE_SERVER_BYTES", "1")


def trained(directory, seed, layout, names, jobs="ps"):
    """What `tests.programs.lost_servers` has found, by case."""
    directory = directory / str(seed)
    directory.mkdir()
    run_program(["--ps=2", *layout, "--max_restarts=100"], "lost_servers", directory, seed, jobs, *names, limit=500)
    found = json.loads((directory / "result.json").read_text())
    for name, result in found.items():
        assert result["killed"] == [0, 1], name
        assert result["begun"] > 1, name  # or nothing was lost
        assert result["epochs"] == [*range(EPOCHS)], name
        counted = 0 if name == "two optimizers" else EPOCHS * PER_EPOCH  # by the optimizers that it holds
        assert result["updates"] == counted, name
    return found


def check_equal_to_keras(name, result):
    make, rows, _, _ = CASES[name]
    model = make()
    expected = outcome(model, model.fit(**arguments(rows()), epochs=EPOCHS, verbose=0))
    for what in ("weights", "optimizers"):
        assert len(result[what]) == len(expected[what]), (name, what)
        for value, wanted in zip(result[what], expected[what], strict=True):
            np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-5, err_msg=f"{name}: {what}")
    for key, values in expected["history"].items():
        np.testing.assert_allclose(result["history"][key], values, rtol=2e-4, atol=2e-5, err_msg=f"{name}: {key}")


@pytest.mark.parametrize(
    ("layout", "names", "seed"),
    [
        pytest.param(
            ["--workers=1"],
            ["layers, dataset, sharded", "own step", "never called", "two optimizers"],
            0,
            id="one worker",
        ),
        pytest.param(["--workers=2"], ["sync, averaged, sharded"], 0, id="synchronous"),
        pytest.param(["--workers=2", "--no-chief"], ["sync"], 0, id="worker 0 leads"),
        pytest.param(["--workers=1"], [n for n in EXACT if n not in SYNCHRONOUS], 1, id="all, one worker", marks=ALL),
        pytest.param(["--workers=2"], SYNCHRONOUS, 2, id="all, synchronous", marks=ALL),
    ],
)
def test_weights_are_those_of_keras(tmp_path, layout, names, seed):
    """And the optimizer's variables, and the logs of all epochs: as if nothing had been lost."""
    for name, result in trained(tmp_path, seed, layout, names).items():
        check_equal_to_keras(name, result)


@pytest.mark.parametrize("jobs", ["ps", "ps,worker", "worker,ps"])
def test_several_workers_learn_and_count(tmp_path, jobs):
    """Also where a worker is lost together with each server, and is used when it is back."""
    names = ["averaged", "local steps"]
    for name, result in trained(tmp_path, 3, ["--workers=2"], names, jobs).items():
        losses = result["history"]["loss"]
        assert len(losses) == EPOCHS, name
        assert losses[-1] < 0.7 * losses[0], name
        assert result["unused"] == [], name
