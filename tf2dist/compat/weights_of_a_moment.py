"""Saves the values that variables had at some moment, though they have others by now.

`keras.Model.save_weights` makes an optimizer to see which attributes every optimizer has, each time, since it looks for
what it found under another name than it notes it (`get_attr_skipset` in keras/src/saving/saving_lib.py, Keras 3.15). In
a `StatelessScope` no variable can be made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.saving import saving_lib

from tf2dist.compat.executor_per_thread import in_own_executor


def save_weights(model: keras.Model, values: Iterable[tuple[keras.Variable, Any]], path: str) -> None:
    """`model.save_weights(path)` with these values of its variables, in any thread, while another one trains."""
    known = saving_lib.get_attr_skipset("Optimizer")
    global_state.set_global_attribute("saving_attr_skiplist_Optimizer", known)
    try:
        with in_own_executor(), keras.StatelessScope(values):
            model.save_weights(path)
    finally:
        global_state.set_global_attribute("saving_attr_skiplist_Optimizer", None)
