"""Which models and optimizers take a checkpoint, and what they make of it."""

import os

import keras
import numpy as np
import pytest

import tf2dist
from tests import custom_step_cases
from tests.conftest import sampled
from tests.models import OPTIMIZERS, classifier, data
from tests.training.interrupted import STEPS, fit
from tf2dist.errors import CheckpointError
from tf2dist.training.checkpoint_files import list_checkpoints, step_of


@pytest.mark.slow
def test_a_model_whose_layers_are_elsewhere_is_refused(tf, tmp_path):
    """Its variables have the same shapes, and Keras loads what it finds; that must not be trained on, nor set aside."""
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), epochs=2)
    plain = classifier(OPTIMIZERS["adam"]())
    with strategy.scope():
        inner = keras.Sequential([keras.Input(plain.input_shape[1:]), keras.layers.Dense(8, "tanh")])
        model = keras.Sequential([keras.Input(plain.input_shape[1:]), inner, keras.layers.Dense(3)])
        model.compile(OPTIMIZERS["adam"](), plain.loss)
    with pytest.raises(CheckpointError, match=rf"checkpoint-{2 * STEPS} cannot be restored; it may be of another"):
        tf2dist.fit(model, data(), callbacks=[tf2dist.Checkpoint(tmp_path)])
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [STEPS, 2 * STEPS]


def test_a_checkpoint_of_another_model_is_refused(tf, tmp_path):
    strategy = tf2dist.make_strategy("one")
    fit(strategy, tf2dist.Checkpoint(tmp_path), epochs=1)
    before = {path: os.stat(path).st_mtime for path in list_checkpoints(tmp_path)}
    with strategy.scope():
        model = classifier(OPTIMIZERS["adam"](), keras.layers.Dense(5))
    unlike = r"is of another model, name another directory or remove it: .* in the place of \S*kernel, of shape \["
    with pytest.raises(CheckpointError, match=unlike):
        tf2dist.fit(model, data(), callbacks=[tf2dist.Checkpoint(tmp_path)])
    unlike = r"is of another optimizer, .*: it has 10 variables, and the SGD here has 2$"
    with pytest.raises(CheckpointError, match=unlike):
        fit(strategy, tf2dist.Checkpoint(tmp_path), optimizer="sgd", epochs=1)
    assert before == {path: os.stat(path).st_mtime for path in list_checkpoints(tmp_path)}


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("how", ["fit", "load_checkpoint"])
def test_a_layer_makes_constants_of_what_was_read(tf, tmp_path, sharded, how):
    """`Normalization` those of its mean, which it was not adapted to in the next job."""
    x, y = data()

    def made(adapts):
        normalization = keras.layers.Normalization()
        model = keras.Sequential([keras.Input(x.shape[1:]), normalization, keras.layers.Dense(3)])
        if adapts:
            normalization.adapt(3 * x + 5)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
        return model

    first, second = made(True), made(False)
    tf2dist.fit(first, x, y, callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    if how == "fit":
        tf2dist.fit(second, x, y, callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    else:
        tf2dist.load_checkpoint(second, tmp_path)
    np.testing.assert_allclose(second.predict(x, verbose=0), first.predict(x, verbose=0), rtol=1e-6)


@pytest.mark.parametrize("sharded", [False, True])
def test_other_optimizers_that_a_model_holds(tf, tmp_path, sharded):
    """Those of a GAN, say: without their variables it would begin anew, and what is good is not set aside for that."""

    class Two(keras.Sequential):
        second = None

    def made():
        model = Two([keras.Input((12,)), keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
        return model

    first = made()
    tf2dist.fit(first, data(), callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    second = made()
    second.second = keras.optimizers.Adam()
    second.second.build(second.trainable_variables)
    before = list_checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="is of a model with other optimizers"):
        tf2dist.load_checkpoint(second, tmp_path)
    with pytest.raises(CheckpointError, match="is of a model with other optimizers"):
        tf2dist.fit(second, data(), callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    assert list_checkpoints(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_an_optimizer_that_is_built_is_not_built_again(tf, tmp_path, sharded):
    """A `LossScaleOptimizer` would make its variables twice."""

    def made():
        model = classifier(OPTIMIZERS["adam"]())
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), model.loss)
        return model

    model, other = made(), made()
    tf2dist.fit(model, data(), callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    for each in (model, other, other):
        steps = tf2dist.load_checkpoint(each, tmp_path)
    tf2dist.fit(other, data(), epochs=2, callbacks=[tf2dist.Checkpoint(tmp_path, sharded=sharded)])
    assert tf2dist.updates(other) == 2 * steps


PUBLISHED = custom_step_cases.CASES


@pytest.mark.slow
@pytest.mark.parametrize("sharded", sampled([False, True], [False]))
@pytest.mark.parametrize("name", sampled(list(PUBLISHED), ["vae", "dcgan"]))
def test_a_model_with_a_step_of_its_own_goes_on(strategy, tmp_path, name, sharded):
    """Also one that was never called, as the variational autoencoder of keras.io, and one with two optimizers."""
    make, rows = PUBLISHED[name]

    def trained(epochs, directory):
        with strategy.scope():
            model = make()
        checkpoint = tf2dist.Checkpoint(directory, every_steps=3, sharded=sharded)
        tf2dist.fit(model, custom_step_cases.batches(rows), epochs=epochs, callbacks=[checkpoint], verbose=0)
        return model

    whole = trained(3, tmp_path / "whole")
    trained(1, tmp_path / "parts")
    model = trained(3, tmp_path / "parts")
    assert tf2dist.updates(model) == tf2dist.updates(whole)
    for ours, theirs in zip(model.weights, whole.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=ours.path)
    if name == "vae":
        with strategy.scope():
            read = make()
        tf2dist.load_checkpoint(read, tmp_path / "whole")
        for ours, theirs in zip(read.weights, whole.weights, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)
