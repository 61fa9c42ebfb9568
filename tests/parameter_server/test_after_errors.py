"""What a call of `fit` or `evaluate` comes to after one that has failed in the same program."""

import functools
import json

import numpy as np
import pytest

from tests.jobs import run_program

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

KINDS = [("async", 1, 1), ("async", 2, 2), ("sync", 1, 2)]  # of update; servers and workers


@functools.cache
def found(directory, update, servers, workers):
    out = directory / f"{update}-{workers}.json"
    run_program([f"--ps={servers}", f"--workers={workers}"], "after_errors", out, update)
    return json.loads(out.read_text())


@pytest.fixture(
    scope="module",
    params=[pytest.param(k, marks=pytest.mark.exhaustive if k[2] == 1 else ()) for k in KINDS],
    ids=lambda kind: f"{kind[0]}, {kind[2]} workers",
)
def results(request, tmp_path_factory):
    """What the program has noted; it ran once for all tests of this file."""
    return found(tmp_path_factory.getbasetemp(), *request.param), *request.param


ERRORS = {
    "interrupted": "KeyboardInterrupt",
    "callback": "RuntimeError",
    "bad data": "InvalidArgumentError",
    "bad evaluation": "InvalidArgumentError",
}


@pytest.mark.parametrize("error", ERRORS)
def test_nothing_of_a_training_that_failed_goes_on(results, error):
    """Not in the weights, and not in the counts of the next training, which makes all of its updates."""
    notes, update, _, workers = results
    if update == "sync" and error == "interrupted":
        assert error not in notes
        return
    note = notes[error]
    assert note["error"][0] == ERRORS[error]
    assert note["applied"] > 0 or error == "bad evaluation"
    assert note["still"]
    assert note["updates"] == 80
    assert note["epochs"] == 2
    assert sum(note["weights"]) == 80
    if workers == 1:
        assert note["weights"] == [5.0] * 16
    assert note["error"][1] + note["seconds"] < 60  # an execution of 10 million steps was under way


def test_an_error_of_an_evaluation_is_raised_once(results):
    notes, *_ = results
    assert isinstance(notes["evaluated"], float)


def test_a_training_after_a_loss_that_is_nan_comes_to_the_numbers_of_one_without(results):
    """With another learning rate and the weights set back."""
    notes, update, _, workers = results
    assert notes["nan"][0] == "TrainingError"
    (weights, history), (expected, expected_history) = notes["after nan"], notes["unspoilt"]
    if workers == 1 or update == "sync":
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        assert history["loss"] == pytest.approx(expected_history["loss"], rel=1e-5)
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][-1] == pytest.approx(expected_history["loss"][-1], rel=0.5)
