"""AutoGraph for functions of the user's that ours call in a graph, which is traced without it.

A `tf.function` converts all that it calls or nothing (`autograph=...`). Only `tf.__internal__.autograph` converts one
function, as `tf.data` does with those that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as AutoGraph has it inside of a `tf.function`; conditions and loops may depend on tensors.

    To be called where nothing is traced: inside of what is traced without AutoGraph it is off for all.
    """
    autograph = tf.__internal__.autograph
    return autograph.tf_convert(function, autograph.control_status_ctx())
