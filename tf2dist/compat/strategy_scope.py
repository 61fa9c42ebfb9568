"""Calls that are made inside of a `strategy.scope()`, as if they were made outside of it.

Keras enters the scope of a model's strategy by itself, in the places that need it. Elsewhere, in a step that a
coordinator traces for a worker or one that is tried on a single replica, the scope that a program has around its whole
training is not the context that this code expects: optimizers look for other replicas that are not there.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.framework import ops

_here = threading.local()  # strategy: in whose scope this thread has called what runs outside of it


@contextlib.contextmanager
def outside_of_scopes() -> Iterator[None]:
    """Inside, no strategy's scope is entered, nor its devices; in the code of a replica nothing changes."""
    if not (tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context()):
        yield
        return
    graph, left = ops.get_default_graph(), strategy_in_scope()
    variables, resources = graph._variable_creator_stack, graph._resource_creator_stack
    before, _here.strategy = getattr(_here, "strategy", None), left
    distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
    graph._variable_creator_stack, graph._resource_creator_stack = [], collections.defaultdict(list)
    try:
        with tf.device(None):
            yield
    finally:
        graph._variable_creator_stack, graph._resource_creator_stack = variables, resources
        distribute_lib._pop_per_thread_mode()
        _here.strategy = before


def strategy_in_scope() -> tf.distribute.Strategy | None:
    """The strategy in whose scope this thread is, or was when it called what runs outside of it; None without one."""
    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else getattr(_here, "strategy", None)
