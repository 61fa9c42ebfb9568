"""A model that was trained on any strategy of one process is saved and exported as any other."""

import keras
import numpy as np
import pytest

from tests import zoo
from tests.conftest import SINGLE_PROCESS, sampled


@pytest.fixture(params=sampled(SINGLE_PROCESS, ("one",), ("mirrored",)))
def on(request):
    return request.param


@pytest.fixture(params=sampled(zoo.SAVED, ("tabular",), ("convnet", "two_tower", "lstm", "transformer")))
def trained(request, tf, on):
    """The model, its inputs, what plain Keras predicts with the same weights, and how many updates it has had."""
    model, result = zoo.here(request.param, on)
    x = zoo.CASES[request.param].inputs()
    return model, x, zoo.with_weights(request.param, result.weights)(x, training=False), result.updates


def test_saved_and_loaded_by_keras(trained, tmp_path):
    model, x, expected, updates = trained
    model.save(tmp_path / "x.keras")
    loaded = keras.saving.load_model(tmp_path / "x.keras")
    np.testing.assert_allclose(loaded(x, training=False), expected, rtol=1e-5, atol=1e-6)
    assert int(loaded.optimizer.iterations.numpy()) == updates


def test_exported_and_loaded_by_tensorflow(tf, trained, tmp_path):
    model, x, expected, _ = trained
    model.export(tmp_path / "x", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "x"))
    np.testing.assert_allclose(loaded.serve(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_loaded_weights_train_on(tf, on, tmp_path):
    """What was saved goes into a new model on the strategy, which then trains on like the old one."""
    import tf2dist

    case = zoo.CASES["two_tower"]
    model, _ = zoo.by_tf2dist("two_tower", zoo.make(on))
    model.save(tmp_path / "x.keras")
    with zoo.make(on).scope():
        loaded = keras.saving.load_model(tmp_path / "x.keras")
    histories = [
        tf2dist.fit(m, case.data(), batch_size=case.batch, shuffle=False, verbose=0).history for m in (model, loaded)
    ]
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-5)
