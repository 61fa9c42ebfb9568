"""Who runs an execution (see `execution`), and how: this process itself, or the workers of a coordinator.

All dispatchers (`replicas.Local`, `workers.Remote`, `synchronous.Synchronous`) have the same methods:

- `compile(steps)`: an execution of training steps;
- `stream(feed, start)`: an endless iterator, or one on each worker, over the batches from step `start` on;
- `in_flight`: executions that may be under way at once;
- `position`: the steps that were applied, `start` included;
- `run(execution, iterator, n)`: runs or schedules `n` steps;
- `result()`: waits for the execution that was run first and has not been asked for, a `Done`;
- `evaluation(steps, feed)`, `prediction(steps, feed)`: generators of what the executions of one pass bring;
- `stop()`: ends what is under way, at the end of training or after an error.
"""

from __future__ import annotations

import tensorflow as tf

from tf2dist.parameter_server import ParameterServer
from tf2dist.replicas import Local
from tf2dist.synchronous import Synchronous
from tf2dist.workers import Remote


def dispatcher_for(strategy: tf.distribute.Strategy, options: ParameterServer):
    """The dispatcher that fits a strategy."""
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        if options != ParameterServer():
            raise ValueError(f"parameter_server={options} is for strategy ps; this is {type(strategy).__name__}")
        return Local(strategy)
    return Synchronous(strategy, options) if options.update == "sync" else Remote(strategy, options)
