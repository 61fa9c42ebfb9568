"""What an execution is, and what comes back from one.

An *execution* is one call of a `tf.function` that runs many steps, because what lies between two calls (Python, or
a message to a worker) costs more than a small step does. The number of steps is an argument of the function, so
one trace serves every length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
