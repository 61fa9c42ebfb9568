"""Several updates on a copy of the weights: one worker's are those of one device, and none is lost."""

import json

import numpy as np
import pytest

import tf2dist
from tests.jobs import run_program
from tests.models import OPTIMIZERS, ROWS, classifier, data, weights, with_losses_of_layers

BATCH, SEED, EPOCHS = 16, 3, 3
STEPS = -(-ROWS // BATCH)
MODELS = {name: lambda optimizer=optimizer: classifier(optimizer()) for name, optimizer in OPTIMIZERS.items()}
MODELS |= dict.fromkeys(["losses of layers, 1", "losses of layers, 5"], with_losses_of_layers)  # local steps
pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module", params=[1, 2])
def workers(request):
    return request.param


@pytest.fixture(scope="module")
def results(workers, tmp_path_factory):
    """What the program found out with so many workers; it ran once for all tests of this file."""
    out = tmp_path_factory.mktemp("local_steps") / "results.json"
    run_program(["--ps=1", f"--workers={workers}"], "local_steps", out)
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", MODELS)
def test_trains_as_one_device(tf, workers, results, name):
    """Also where a group is cut short, as 7 steps an execution cut groups of 5, and 16 examples an epoch of 103."""
    ours = results[name]
    if workers > 1:  # they do not go the same way twice; but they do learn
        assert ours["history"]["loss"][-1] < ours["history"]["loss"][0]
        return
    with tf2dist.make_strategy("one").scope():
        model = MODELS[name]()
    history = tf2dist.fit(model, data(), batch_size=BATCH, seed=SEED, epochs=EPOCHS).history
    for weight, expected in zip(ours["weights"], weights(model), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=2e-4, atol=2e-5)
    for key, values in history.items():
        np.testing.assert_allclose(ours["history"][key], values, rtol=1e-4)


def test_updates_are_exact(results):
    assert {name: result["updates"] for name, result in results.items()} == dict.fromkeys(MODELS, EPOCHS * STEPS)
