"""The seed of the orders in which a call of `fit` reads rows, where none was given."""

from __future__ import annotations

import keras

# The model's attribute, so that it is forgotten with the model: the seed of the training that was begun last, and that
# of the next one.
_SEEDS = "_tf2dist_shuffle_seeds"


def begin_call(model: keras.Model, initial_epoch: int) -> int:
    """Notes that a call begins; returns its seed, the number of trainings before it, so that each has its own orders.

    A function of the calls alone: the same in all peers of a job, and again when the job has been started again. A
    call that goes on from an epoch has the orders of the training that it continues.
    """
    last, following = _seeds(model)
    seed = last if initial_epoch else following
    vars(model)[_SEEDS] = seed, following
    return seed


def end_call(model: keras.Model) -> None:
    """Notes that a call has ended well. After an error it can be made again, and reads what it would have read."""
    last, following = _seeds(model)
    vars(model)[_SEEDS] = last, max(following, last + 1)


def _seeds(model: keras.Model) -> tuple[int, int]:
    return vars(model).get(_SEEDS, (0, 0))
