"""Losses that layers add while they are called, kept apart for each thread that calls them.

A Keras layer keeps them in itself (keras/src/layers/layer.py, `add_loss`), and a model forgets them when it is called
again. The replicas of a `MirroredStrategy` or `CentralStorageStrategy` are traced in threads that take turns in the
middle of a call, wherever replicas exchange something, so that each would find losses of the others, or none.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from tf2dist.compat.patching import Patch

Key = tuple[int, int]  # the layer's id, and counted up in it
Losses = dict[Key, tf.Tensor]
AsMean = Callable[[Key, tf.Tensor], tf.Tensor]


class _Here(threading.local):
    losses: Losses | None = None  # None in threads that trace none of ours
    as_mean: AsMean | None = None


_here = _Here()


@contextlib.contextmanager
def kept_apart(as_mean: AsMean) -> Iterator[Losses]:
    """Inside, layers have the losses that they have added in this thread.

    Args:
      as_mean: makes of a loss that a layer adds one whose mean over slices is that of the whole batch.
    """
    outer = _here.losses, _here.as_mean
    _here.losses, _here.as_mean = {}, as_mean
    try:
        with _adding.applied():
            yield _here.losses
    finally:
        _here.losses, _here.as_mean = outer


def is_of_each_example(loss: tf.Tensor) -> bool:
    """Has a loss that a layer adds a value for each example? Their sum is meant."""
    return bool(loss.shape.rank) and loss.shape[0] is None


def _own(layer: keras.Layer) -> list[Key]:
    assert _here.losses is not None
    return [key for key in _here.losses if key[0] == id(layer)]


def _add_loss(self, loss):
    if _here.losses is None:
        _adding.original("add_loss")(self, loss)
        return
    for each in keras.tree.flatten(loss):
        if not tf.is_tensor(each):
            raise ValueError(f"add_loss takes a tensor, inside of build() or call(); found {each!r}")
        key = id(self), len(_own(self))
        _here.losses[key] = _here.as_mean(key, each) if _here.as_mean else each


def _get_own_losses(self):
    if _here.losses is None:
        return _adding.original("_get_own_losses")(self)
    return [_here.losses[key] for key in _own(self)]


def _clear_losses(self):
    if _here.losses is None:
        _adding.original("_clear_losses")(self)
        return
    for layer in [self, *self._flatten_layers(include_self=False)]:
        for key in _own(layer):
            del _here.losses[key]


_adding = Patch(
    keras.Layer,
    {"add_loss": _add_loss, "_get_own_losses": _get_own_losses, "_clear_losses": _clear_losses},
)
