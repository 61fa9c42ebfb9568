"""What differs between the versions of TensorFlow and Keras that are supported; `make matrix` tries them."""

from __future__ import annotations

import contextlib
import functools
import logging

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

NEWEST = {"TensorFlow": (2, 21), "Keras": (3, 15)}  # that were tried

_log = logging.getLogger("tf2dist")


@functools.cache
def warn_if_untried() -> None:
    """Warns, once a process, where TensorFlow or Keras is newer than any that was tried."""
    for package, found in (("TensorFlow", tf.__version__), ("Keras", keras.__version__)):
        newest = NEWEST[package]
        if tuple(map(int, found.split(".")[:2])) > newest:
            _log.warning(
                "tf2dist was tried with %s up to %d.%d, and this is %s: should training fail or give odd numbers, try "
                "it with the older one",
                *(package, *newest, found),
            )


def optimizers_with_own_apply() -> list[type]:
    """The classes of Keras's optimizers whose `apply` is not another one's; `MultiOptimizer` since Keras 3.15."""
    classes = [BaseOptimizer, keras.optimizers.LossScaleOptimizer]
    with contextlib.suppress(ImportError):
        from keras.src.optimizers.multi_optimizer import MultiOptimizer

        classes.append(MultiOptimizer)
    return classes
