"""Files of a model's weights: with the values that they had at some moment, and of models that Keras calls not built.

`keras.Model.save_weights` makes an optimizer to see which attributes every optimizer has, each time, since it looks for
what it found under another name than it notes it (`get_attr_skipset` in keras/src/saving/saving_lib.py, Keras 3.15). In
a `StatelessScope` no variable can be made.

It also refuses a model that was never called, as one whose `train_step` calls its layers (`save_weights_only` in the
same file): keras.io's variational autoencoder has no `call`. Its layers have their variables all the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.saving import saving_lib

from tf2dist.compat.executor_per_thread import in_own_executor

_counting = threading.Lock()


def save_weights(model: keras.Model, path: str, values: Iterable[tuple[keras.Variable, Any]] | None = None) -> None:
    """`model.save_weights(path)`, in any thread, of a model whose layers have their variables.

    Args:
      values: of its variables, in place of those that they have by now, which another thread may train.
    """
    if values is None:
        with _counted_as_built(model):
            model.save_weights(path)
        return
    known = saving_lib.get_attr_skipset("Optimizer")
    global_state.set_global_attribute("saving_attr_skiplist_Optimizer", known)
    try:
        with in_own_executor(), keras.StatelessScope(values), _counted_as_built(model):
            model.save_weights(path)
    finally:
        global_state.set_global_attribute("saving_attr_skiplist_Optimizer", None)


def load_weights(model: keras.Model, path: str) -> None:
    """`model.load_weights(path)` of a model whose layers have their variables."""
    with _counted_as_built(model):
        model.load_weights(path)


@contextlib.contextmanager
def _counted_as_built(model: keras.Model) -> Iterator[None]:
    if model.built:
        yield
        return
    with _counting:
        try:
            model.built = True
            yield
        finally:
            model.built = False
