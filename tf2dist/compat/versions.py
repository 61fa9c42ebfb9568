"""What the supported versions of TensorFlow and Keras have, and others of them have not."""

from __future__ import annotations

import contextlib

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer


def max_epochs() -> int | None:
    """The limit of `keras.config.set_max_epochs`; None if there is none, as before Keras 3.10."""
    return keras.config.max_epochs() if hasattr(keras.config, "max_epochs") else None


def max_steps_per_epoch() -> int | None:
    """The limit of `keras.config.set_max_steps_per_epoch`; None if there is none, as before Keras 3.10."""
    return keras.config.max_steps_per_epoch() if hasattr(keras.config, "max_steps_per_epoch") else None


def optimizers_with_own_apply() -> list[type]:
    """The classes of Keras's optimizers whose `apply` is not another one's; `MultiOptimizer` since Keras 3.15."""
    classes = [BaseOptimizer, keras.optimizers.LossScaleOptimizer]
    with contextlib.suppress(ImportError):
        from keras.src.optimizers.multi_optimizer import MultiOptimizer

        classes.append(MultiOptimizer)
    return classes
