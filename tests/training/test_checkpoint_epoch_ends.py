"""`tf2dist.Checkpoint` at the last step of an epoch: the next job ends the epoch, as one alone would have."""

import logging

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import ONE_QUICKLY_CENTRAL_RARELY, strategies
from tests.models import OPTIMIZERS, classifier, data, weights
from tests.training.interrupted import BATCH, STEPS, Kill, Killed, fit

strategy = strategies(ONE_QUICKLY_CENTRAL_RARELY)


class Halve(keras.callbacks.Callback):
    """Halves the learning rate at the end of each epoch, as `ReduceLROnPlateau` may, and keeps the logs."""

    def __init__(self):
        super().__init__()
        self.logs = {}

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate.assign(self.model.optimizer.learning_rate / 2)
        self.logs[epoch] = logs


@pytest.mark.slow
def test_what_callbacks_do_at_the_end_of_an_epoch_is_done_again(strategy, tmp_path):
    """A checkpoint that is due at its last step is written before it, and so they are called by the next job too."""
    alone, halve = Halve(), Halve()
    options = {"validation_data": data(1)}
    expected, _ = fit(strategy, alone, **options)
    with pytest.raises(Killed):
        fit(strategy, halve, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), Kill(2 * STEPS + 3), **options)
    model, _ = fit(strategy, halve, tf2dist.Checkpoint(tmp_path), **options)
    for ours, theirs in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert halve.logs == {epoch: pytest.approx(logs, rel=1e-5) for epoch, logs in alone.logs.items()}


@pytest.mark.slow
def test_an_epoch_that_a_shorter_training_has_not_ended_is_still_to_be_ended(tf, tmp_path):
    strategy, halve = tf2dist.make_strategy("one"), Halve()
    with pytest.raises(Killed):
        fit(strategy, halve, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), Kill(2 * STEPS + 3))
    fit(strategy, halve, tf2dist.Checkpoint(tmp_path), epochs=1)  # has nothing to train
    halve.logs.clear()
    fit(strategy, halve, tf2dist.Checkpoint(tmp_path))
    assert [*halve.logs] == [1, 2, 3]


@pytest.mark.slow
def test_a_training_that_was_stopped_at_the_last_step_of_an_epoch_with_other_metrics(tf, tmp_path):
    strategy = tf2dist.make_strategy("one")

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = tf2dist.updates(self.model) == 2 * STEPS

        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise Killed

    with pytest.raises(Killed):
        fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), Stop())
    model = classifier(OPTIMIZERS["adam"]())
    model.compile(model.optimizer, model.loss, metrics=["accuracy", "sparse_categorical_crossentropy"])
    tf2dist.fit(model, data(), epochs=3, batch_size=BATCH, seed=3, callbacks=[tf2dist.Checkpoint(tmp_path)])
    assert tf2dist.updates(model) == 2 * STEPS


@pytest.mark.slow
def test_the_end_of_an_epoch_with_other_metrics(tf, tmp_path, caplog):
    """It is not ended again, as its logs are not known."""
    strategy = tf2dist.make_strategy("one")
    with pytest.raises(Killed):
        fit(strategy, tf2dist.Checkpoint(tmp_path, every_steps=STEPS), Kill(STEPS + 2))
    model = classifier(OPTIMIZERS["adam"]())
    model.compile(model.optimizer, model.loss, metrics=["accuracy", "sparse_categorical_crossentropy"])
    with caplog.at_level(logging.WARNING, "tf2dist"):
        history = tf2dist.fit(
            model, data(), epochs=3, batch_size=BATCH, seed=3, callbacks=[tf2dist.Checkpoint(tmp_path)]
        )
    assert "callbacks are not told that epoch 1 has ended" in caplog.text
    assert history.epoch == [1, 2]


@pytest.mark.slow
def test_the_end_of_an_epoch_of_a_train_step_of_ones_own(tf, tmp_path):
    """Only the process that has made its steps knows their logs, so the next job begins with the next epoch."""

    @keras.saving.register_keras_serializable("tests")
    class Own(keras.Sequential):
        def train_step(self, batch):
            return super().train_step(batch) | {"twice": 2 * self.optimizer.learning_rate}

    x, _ = data()

    def train(*callbacks):
        keras.utils.set_random_seed(3)
        model = Own([keras.Input(x.shape[1:]), keras.layers.Flatten(), keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        history = tf2dist.fit(model, data(), batch_size=BATCH, seed=3, epochs=3, callbacks=callbacks, verbose=0)
        return model, history

    expected, whole = train()
    with pytest.raises(Killed):
        train(tf2dist.Checkpoint(tmp_path, every_steps=STEPS), Kill(STEPS + 2))
    model, history = train(tf2dist.Checkpoint(tmp_path))
    assert history.epoch == [1, 2]
    assert history.history["loss"] == pytest.approx(whole.history["loss"][1:], rel=1e-5)
    np.testing.assert_allclose(weights(model)[0], weights(expected)[0], rtol=1e-5, atol=1e-6)
