"""A loss that has become NaN ends training with an error, unless a callback does without one."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from tf2dist.errors import TrainingError
from tf2dist.training.callbacks import includes


def fails_on_nan(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Does a loss that is NaN end training with an error?"""
    return not includes(callbacks, keras.callbacks.TerminateOnNaN)


def nan_error(step: int) -> TrainingError:
    """The error for a loss that has become NaN."""
    return TrainingError(
        f"the loss is NaN after {step} updates: lower the learning rate, clip the gradients (clipnorm) or look for NaN "
        "in the data; with the callback keras.callbacks.TerminateOnNaN training ends here without an error"
    )
