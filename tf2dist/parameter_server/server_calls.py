"""What a server does by itself, for whoever calls it in a graph: functions, and queues that all tasks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def called_by_server(function: Callable[..., Any]) -> Any:
    """A `tf.function`, or such a method, that is called as a whole by the server on whose device the call is.

    Its conditions and loops are no messages, and are replaced by what is in them before it runs.
    """
    return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})


def shared_queue(device: str, name: str, dtypes: Sequence[tf.DType]) -> tf.Tensor:
    """The queue with this name on a server. Made wherever it is used: an existing one with this name is the same."""
    with tf.device(device):
        return tf.raw_ops.FIFOQueueV2(component_types=dtypes, shared_name=name)
