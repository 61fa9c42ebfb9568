"""The seed of the orders in which a call of `fit` reads rows, where none was given."""

from __future__ import annotations

import keras

_TRAININGS = "_tf2dist_trainings"  # the model's attribute, so that it is forgotten with the model


def default_seed(model: keras.Model, initial_epoch: int) -> int:
    """Returns the number of trainings of the model that have ended: each sees orders of its own, as with Keras.

    A function of the calls alone: the same in all peers of a job, and again when the job has been started again. A
    call that goes on from an epoch has the orders of the training that it continues.
    """
    ended: int = vars(model).get(_TRAININGS, 0)
    return max(0, ended - 1) if initial_epoch else ended


def count_training(model: keras.Model, initial_epoch: int) -> None:
    """Notes that a call has ended well. After an error it can be made again, and reads what it would have read."""
    if not initial_epoch:
        vars(model)[_TRAININGS] = vars(model).get(_TRAININGS, 0) + 1
