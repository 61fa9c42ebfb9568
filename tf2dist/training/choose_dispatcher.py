"""Chooses the dispatcher for a strategy."""

from __future__ import annotations

import tensorflow as tf

from tf2dist.errors import UsageError
from tf2dist.execution.dispatcher_interface import Dispatcher
from tf2dist.execution.replica_dispatcher import ReplicaDispatcher
from tf2dist.parameter_server.asynchronous import AsynchronousDispatcher
from tf2dist.parameter_server.options import ParameterServer
from tf2dist.parameter_server.synchronous import SynchronousDispatcher


def choose_dispatcher(strategy: tf.distribute.Strategy, options: ParameterServer) -> Dispatcher:
    """The dispatcher that runs steps on this strategy.

    Raises:
      ValueError: options for parameter servers, on a strategy without; or options that the cluster cannot meet.
    """
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        if options != ParameterServer():
            raise UsageError(f"parameter_server={options} is for strategy ps; this is {type(strategy).__name__}")
        return ReplicaDispatcher(strategy)
    if options.update == "sync":
        return SynchronousDispatcher(strategy, options)
    return AsynchronousDispatcher(strategy, options)
