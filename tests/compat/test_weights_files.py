"""What was in variables is saved, whatever is in them by now, and whatever Keras thinks of the model."""

import threading

import keras
import numpy as np
import pytest

from tf2dist.compat.weights_files import load_weights, save_weights


def made():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
    model.compile(keras.optimizers.Adam(ema_momentum=0.9, use_ema=True), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def filled(model, rng):
    for variable in [*model.variables, *model.optimizer.variables]:
        variable.assign(rng.integers(0, 100, variable.shape))
    return [v.value.read_value() for v in [*model.variables, *model.optimizer.variables]]


@pytest.mark.parametrize("in_thread", [False, True])
def test_what_was_there_is_saved(tf, tmp_path, in_thread):
    model, rng, path = made(), np.random.default_rng(0), str(tmp_path / "a.weights.h5")
    variables = [*model.variables, *model.optimizer.variables]
    before = filled(model, rng)
    after = filled(model, rng)
    arguments = model, path, zip(variables, before, strict=True)
    if in_thread:
        thread = threading.Thread(target=save_weights, args=arguments)
        thread.start()
        thread.join()
    else:
        save_weights(*arguments)
    for variable, value in zip(variables, after, strict=True):
        np.testing.assert_array_equal(variable, value)
    model.load_weights(path)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_keras_makes_a_variable_while_it_saves(tf, tmp_path):
    """Fails when Keras saves in a `StatelessScope`; then half of `save_weights` can go."""
    model = made()
    with keras.StatelessScope(), pytest.raises(ValueError, match="create a variable while in a stateless scope"):
        model.save_weights(str(tmp_path / "a.weights.h5"))


class Uncalled(keras.Model):
    """As keras.io's variational autoencoder: its `train_step` calls its layers."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = keras.layers.Dense(2), keras.layers.Dense(4)
        self.encoder.build((None, 4))
        self.decoder.build((None, 2))


@pytest.mark.parametrize("moment", [False, True])
def test_a_model_that_was_never_called(tf, tmp_path, moment):
    model, path = Uncalled(), str(tmp_path / "a.weights.h5")
    expected = [v.value.read_value() for v in model.variables]
    save_weights(model, path, zip(model.variables, expected, strict=True) if moment else None)
    for variable in model.variables:
        variable.assign(variable + 1)
    load_weights(model, path)
    for variable, value in zip(model.variables, expected, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert not model.built


def test_keras_saves_no_model_that_was_never_called(tf, tmp_path):
    """Fails when it does; then `load_weights` can go."""
    with pytest.raises(ValueError, match="has not yet been built"):
        Uncalled().save_weights(str(tmp_path / "a.weights.h5"))
