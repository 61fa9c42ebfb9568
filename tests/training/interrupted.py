"""Trainings of a small model that end in the middle."""

from __future__ import annotations

import keras

import tf2dist
from tests.models import OPTIMIZERS, ROWS, classifier, data

BATCH = 16
STEPS = -(-ROWS // BATCH)  # of an epoch


class Killed(Exception):
    """Stands for what ends a job in the middle."""


class Kill(keras.callbacks.Callback):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_train_batch_end(self, batch, logs=None):
        if tf2dist.updates(self.model) >= self.at:
            raise Killed


def fit(strategy, *callbacks, optimizer="adam", epochs=4, **kwargs):
    with strategy.scope():
        model = classifier(OPTIMIZERS[optimizer]())
    kwargs = {"batch_size": BATCH, "seed": 3, "steps_per_execution": 1} | kwargs
    return model, tf2dist.fit(model, data(), epochs=epochs, callbacks=callbacks, **kwargs).history
