"""AutoGraph for functions of the user's that ours call in a graph, which is traced without it.

A `tf.function` converts all that it calls or nothing (`autograph=...`). Only `tf.__internal__.autograph` converts one
function, as `tf.data` does with those that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as AutoGraph has it inside of a `tf.function`; conditions and loops may depend on tensors.

    What the function gives to `Dataset.map` and the like is converted as well, but not what lambdas and functions that
    are written in it call.
    """
    context = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.UNSPECIFIED)  # and not that of what is traced around it
    return tf.__internal__.autograph.tf_convert(function, context)


def as_in_function(*, autograph: bool) -> AbstractContextManager[Any]:
    """Inside, AutoGraph is as it is while a `tf.function` with this argument is traced, whatever is traced around it.

    TensorFlow's `converted_call` does nothing where it is off, and `tf.data.Iterator` refuses more than 32 calls there
    (`GET_NEXT_CALL_ERROR_THRESHOLD` in tensorflow/python/data/ops/iterator_ops.py).
    """
    return ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED if autograph else ag_ctx.Status.DISABLED)
