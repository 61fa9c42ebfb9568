"""Several updates on a copy of the weights: those of one device with one worker, near them with two; none is lost."""

import functools
import json
import math

import keras
import numpy as np
import pytest

import tf2dist
from tests import bands
from tests.conftest import sampled
from tests.jobs import run_program
from tests.models import OPTIMIZERS, ROWS, classifier, data, weights, with_losses_of_layers

BATCH, SEED = 16, 3
PASS = -(-ROWS // BATCH)  # updates
# Epochs and updates in each, by workers. Of two workers' executions of 7 steps, some must run at the same time.
EPOCHS = {1: (3, PASS), 2: (2, 2 * PASS)}
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
    run_program(["--ps=1", f"--workers={workers}"], "local_steps", out, *EPOCHS[workers])
    return json.loads(out.read_text())


def on_one_device(name, workers, callbacks=()):
    """The model, and the history, of the same training in one process."""
    epochs, steps = EPOCHS[workers]
    with tf2dist.make_strategy("one").scope():
        model = MODELS[name]()
    options = {"epochs": epochs, "steps_per_epoch": steps, "callbacks": list(callbacks)}
    return model, tf2dist.fit(model, data(), batch_size=BATCH, seed=SEED, **options).history


@functools.cache
def way(name):
    """Loss and metrics on one device: as built, halfway, and in the end."""
    weights = [MODELS[name]().get_weights()]
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: weights.append(note.model.get_weights()))
    on_one_device(name, 2, [note])
    return [evaluated(name, w) for w in weights]


def evaluated(name, weights):
    """Loss and metrics with these weights in plain Keras, over all of the data."""
    model = MODELS[name]()
    model.set_weights(weights)
    return model.evaluate(*data(), batch_size=ROWS, verbose=0, return_dict=True)


@pytest.mark.parametrize("name", MODELS)
def test_trains_as_one_device(tf, workers, results, name):
    """Also where a group is cut short, as 7 steps an execution cut groups of 5, and 16 examples an epoch of 103."""
    ours = results[name]
    if workers > 1:  # they do not go the same way twice, but as far
        untrained, _, theirs = way(name)
        reached = evaluated(name, [np.array(w) for w in ours["all weights"]])
        assert bands.outside(untrained, theirs, reached) == []
        return
    model, history = on_one_device(name, workers)
    for weight, expected in zip(ours["weights"], weights(model), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=2e-4, atol=2e-5)
    for key, values in history.items():
        np.testing.assert_allclose(ours["history"][key], values, rtol=1e-4)


@pytest.mark.parametrize("name", sampled(MODELS, (), ("adam", "losses of layers, 5")))
def test_half_of_the_updates_would_be_found(tf, name):
    """And so would a model as built."""
    untrained, half, theirs = way(name)
    for model in untrained, half:
        assert bands.outside(untrained, theirs, model)


def test_updates_are_exact(workers, results):
    updates = math.prod(EPOCHS[workers])
    assert {name: result["updates"] for name, result in results.items()} == dict.fromkeys(MODELS, updates)
