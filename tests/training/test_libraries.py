"""KerasTuner and Pandas themselves, not stand-ins of them, with the numbers that they have with Keras on one device."""

import contextlib
import importlib

import keras
import keras_tuner
import numpy as np
import pandas
import pytest
from keras.src.trainers.data_adapters import array_slicing

import tf2dist
from tests.conftest import SINGLE_PROCESS, quickly
from tests.models import FEATURES, classifier, data, weights

importlib.reload(array_slicing)  # `tests.fast_imports` has left Pandas out when Keras was imported
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
every_strategy = pytest.mark.parametrize("name", quickly("mirrored", SINGLE_PROCESS, rarely=("one", "central")))


def search(directory, make_model, scope):
    """The trials of a tuner over two learning rates: their values, the scores that they reach, and the best model's."""

    def build(choices):
        with scope():
            return make_model(keras.optimizers.SGD(choices.Choice("rate", [0.01, 0.3])))

    x, y = data()
    tuner = keras_tuner.GridSearch(build, "val_loss", directory=directory, project_name="trials")
    tuner.search(x, y, validation_data=(x[:30], y[:30]), epochs=2, batch_size=16, shuffle=False, verbose=0)
    [best] = tuner.get_best_models(1)
    found = {trial.hyperparameters.get("rate"): trial.score for trial in tuner.oracle.trials.values()}
    return found, best.evaluate(x, y, verbose=0)


@every_strategy
def test_a_tuner_searches_with_bound_models(tf, name, tmp_path):
    """KerasTuner calls `model.fit` itself, once for each trial, and loads the weights of the best."""
    strategy, called = tf2dist.make_strategy(name), []

    def bound(optimizer):
        called.append(optimizer)
        return tf2dist.bind(classifier(optimizer))

    trials, evaluated = search(tmp_path / "ours", bound, strategy.scope)
    expected, of_best = search(tmp_path / "theirs", classifier, contextlib.nullcontext)
    assert len(called) >= len(trials) == 2
    assert max(expected.values()) > 1.2 * min(expected.values())
    assert [trials[values] for values in expected] == pytest.approx([*expected.values()], rel=1e-4)
    np.testing.assert_allclose(evaluated, of_best, rtol=1e-4)


def frames():
    """x as a DataFrame of columns of several types, y as a Series, and weights as one."""
    x, y = data()
    frame = pandas.DataFrame(x.astype(np.float64), columns=[f"feature {n}" for n in range(FEATURES)])
    frame["feature 3"] = frame["feature 3"].round().astype(np.int32)
    return frame, pandas.Series(y, name="class"), pandas.Series(1.0 + y % 2)


@every_strategy
@pytest.mark.parametrize("kind", ["frame", "columns"])
def test_frames_are_arrays(tf, name, kind):
    """A whole DataFrame as the input, or its columns as inputs by name."""
    x, y, weight = frames()

    def model():
        if kind == "frame":
            return classifier(keras.optimizers.SGD(0.1))
        inputs = {column: keras.Input((1,), name=column) for column in x}
        hidden = keras.layers.Concatenate()([inputs[column] for column in x])
        outputs = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(1))(hidden)
        made = keras.Model(inputs, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
        return made

    given = x if kind == "frame" else dict(x)
    arguments = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0, "sample_weight": weight}
    theirs = model()
    history = theirs.fit(given, y, **arguments).history
    with tf2dist.make_strategy(name).scope():
        ours = model()
    found = tf2dist.fit(ours, given, y, **arguments).history
    assert found.keys() == history.keys()
    for key, values in history.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-4, err_msg=key)
    for mine, other in zip(weights(ours), weights(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(tf2dist.predict(ours, given, verbose=0), theirs.predict(given, verbose=0), atol=1e-5)
    assert tf2dist.evaluate(ours, given, y, verbose=0) == pytest.approx(theirs.evaluate(given, y, verbose=0), rel=1e-4)
