"""In which order a call of `fit` reads its rows, where no seed was given: another one for each training."""

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import strategies
from tests.models import ROWS, classifier, data

strategy = strategies(["one", "mirrored"])

BATCH = 16


class Rows(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.x, self.y = data()

    def __len__(self):
        return -(-ROWS // BATCH)

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


class Losses(keras.callbacks.Callback):
    """Notes the mean losses so far, which no two orders share; stops with an error after so many batches."""

    def __init__(self, batches=None):
        super().__init__()
        self.found, self._batches = [], batches

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(logs["loss"])
        if len(self.found) == self._batches:
            raise KeyError("interrupted")


def made(strategy):
    with strategy.scope():
        return classifier(keras.optimizers.SGD(0.0))  # losses tell the order alone


def losses(model, rows, batches=None, **kwargs):
    seen = Losses(batches)
    kwargs = {"batch_size": BATCH if isinstance(rows, tuple) else None} | kwargs
    if batches is None:
        tf2dist.fit(model, rows, callbacks=[seen], verbose=0, **kwargs)
    else:
        with pytest.raises(KeyError, match="interrupted"):
            tf2dist.fit(model, rows, callbacks=[seen], verbose=0, **kwargs)
    return np.array(seen.found)


@pytest.mark.parametrize("rows", [data, Rows])
def test_each_training_has_orders_of_its_own(strategy, rows):
    model = made(strategy)
    first, second, third = (losses(model, rows()) for _ in range(3))
    for a, b in ((first, second), (second, third), (first, third)):
        assert np.abs(a - b).max() > 1e-3
    again = made(strategy)  # as when the program runs again
    for wanted in (first, second):
        np.testing.assert_allclose(losses(again, rows()), wanted, rtol=1e-5)
    np.testing.assert_allclose(losses(again, rows(), seed=0), first, rtol=1e-5)


@pytest.mark.slow
def test_a_call_that_goes_on_has_the_orders_of_the_training_that_it_continues(strategy):
    model, whole = made(strategy), made(strategy)
    for _ in range(2):  # in the second training, too
        parts = [losses(model, data(), initial_epoch=n, epochs=n + 1) for n in range(3)]
        np.testing.assert_allclose(np.concatenate(parts), losses(whole, data(), epochs=3), rtol=1e-5)


@pytest.mark.slow
def test_a_call_that_was_interrupted_can_be_made_again(strategy):
    model = made(strategy)
    first = losses(model, data(), batches=2)
    np.testing.assert_allclose(losses(model, data())[:2], first, rtol=1e-5)
    second = losses(model, data(), epochs=2)
    assert np.abs(second[:2] - first).max() > 1e-3
    losses(model, data(), batches=len(second) // 2, epochs=2)  # of the third one, an epoch
    third = losses(model, data(), initial_epoch=1, epochs=2)
    again = made(strategy)
    for _ in range(2):
        losses(again, data())
    np.testing.assert_allclose(third, losses(again, data(), epochs=2)[len(second) // 2 :], rtol=1e-5)


@pytest.mark.slow
def test_a_compiled_or_moved_model_keeps_count(tf):
    model = classifier(keras.optimizers.SGD(0.0))
    first = losses(model, data())
    model.compile(keras.optimizers.SGD(0.0), model.loss, metrics=["accuracy"])
    assert np.abs(losses(model, data()) - first).max() > 1e-3


@pytest.mark.slow
def test_a_first_call_that_goes_on_counts(tf):
    """As of a program that was started again by hand."""
    model, whole = (classifier(keras.optimizers.SGD(0.0)) for _ in range(2))
    first = losses(whole, data(), epochs=2)
    np.testing.assert_allclose(losses(model, data(), initial_epoch=1, epochs=2), first[len(first) // 2 :], rtol=1e-5)
    np.testing.assert_allclose(losses(model, data()), losses(whole, data()), rtol=1e-5)
