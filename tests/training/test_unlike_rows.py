"""Batches whose parts have different numbers of rows, as labelled and unlabelled examples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf2dist
from tests.custom_step_cases import batches, dense, pair, x
from tests.models import same_weights


class Unlabelled(keras.Model):
    """As FixMatch: one mean over labelled rows, and one over others, of which there are more."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.Input((12,)), dense(4, 0, activation="tanh"), dense(1, 1)])
        self.other_tracker = keras.metrics.Mean(name="other")

    def call(self, x):
        return self.net(x)

    @property
    def metrics(self):
        return [self.other_tracker]

    def train_step(self, data):
        (x, y), others = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(y - self.net(x)))
            other = keras.ops.mean(keras.ops.square(self.net(others) - self.net(0.9 * others)))
            both = loss + 10.0 * other
        self.optimizer.apply(tape.gradient(both, self.trainable_variables), self.trainable_variables)
        self.other_tracker.update_state(other)
        return {"loss": loss, "other": self.other_tracker.result()}


@pytest.mark.parametrize(
    "sizes",
    [
        (9, 18),
        pytest.param((8, 24), marks=pytest.mark.slow),
        pytest.param((3, 17), marks=pytest.mark.slow),
        pytest.param((1, 8), marks=pytest.mark.slow),
    ],
)
def test_rows_of_different_numbers_count_as_on_one_device(strategy, sizes):
    few, many = sizes
    labelled = batches((x[: 5 * few], pair[1][: 5 * few]), few)
    others = batches(np.concatenate([x, 2 * x])[: 5 * many], many)

    def made():
        model = Unlabelled()
        model.compile(keras.optimizers.SGD(0.05))
        return model

    rows = tf.data.Dataset.zip(labelled, others)
    theirs = made()
    expected = theirs.fit(rows, epochs=2, verbose=0)
    with strategy.scope():
        model = made()
    history = tf2dist.fit(model, rows, epochs=2, verbose=0)
    same_weights(model, theirs)
    np.testing.assert_allclose(history.history["other"], expected.history["other"], rtol=1e-4)
