"""How long executions take on workers like these, and how long to wait for one."""

from __future__ import annotations

import math
import statistics
from collections import deque

_RECENT = 32  # executions
_TIMES_LONGER = 4.0  # than others on a busy machine
_MIN_SECONDS = 1.5


class Pace:
    """How long a step takes, as the median of the last executions, whichever workers made them."""

    def __init__(self):
        self._seconds: deque[float] = deque(maxlen=_RECENT)  # of a step
        self._patience = 1.0

    def observe(self, steps: int, seconds: float) -> None:
        """Takes into account an execution that has made its steps."""
        self._seconds.append(seconds / steps)
        self._patience = 1.0

    def next_limit(self, steps: int) -> float:
        """Seconds after which an execution of `steps` steps is not waited for, while others have nothing to do.

        Twice as many each time, until one has made its steps: it may be that none can do better.
        """
        if not self._seconds:
            return math.inf  # the first one is also made ready to run
        limit = self._patience * max(_MIN_SECONDS, _TIMES_LONGER * steps * statistics.median(self._seconds))
        self._patience *= 2
        return limit
