"""Who runs an execution of several steps, and how: this process itself, or the workers of a coordinator.

An *execution* is one call of a `tf.function` that runs many steps, because what lies between two calls (Python, or
a message to a worker) costs more than a small step does. The number of steps is an argument of the function, so
one trace serves every length.

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

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf2dist.parameter_server import ParameterServer

BATCHES = 100  # of evaluation in one execution, at most; bounds how long a signal waits


@dataclass(frozen=True)
class Done:
    """What came back from one execution: its steps, its totals (NumPy arrays) and the seconds it took a worker.

    There are no steps if its worker died: they are missing. The totals are None when the worker died after its last
    step and before they were fetched. `dropped` are gradients that came too late for a synchronous update.
    """

    steps: int
    totals: list[np.ndarray] | None
    seconds: float
    dropped: int | None = None


def dispatcher_for(strategy: tf.distribute.Strategy, options: ParameterServer):
    """The dispatcher that fits a strategy."""
    from tf2dist.replicas import Local
    from tf2dist.synchronous import Synchronous
    from tf2dist.workers import Remote

    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        if options != ParameterServer():
            raise ValueError(f"parameter_server={options} is for strategy ps; this is {type(strategy).__name__}")
        return Local(strategy)
    return Synchronous(strategy, options) if options.update == "sync" else Remote(strategy, options)
