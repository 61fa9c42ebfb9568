"""How long executions take on workers like these, and how long to wait for one."""

from __future__ import annotations

import math
import statistics
from collections import deque

from tf2dist.execution.dispatcher import ExecutionResult

_RECENT = 32  # executions
_TIMES_LONGER = 4.0  # than others on a busy machine
_MIN_SECONDS = 0.5
_STOPPED_SECONDS = 1.0  # a worker that runs has made a step, and seen that its token is revoked
_STOPPED_STEPS = 20.0


class Pace:
    """How long a step takes, as the median of the last executions, whichever workers made them.

    Args:
      steps_at_once: that a worker makes between two looks whether its token is valid.
    """

    def __init__(self, steps_at_once: int = 1):
        self._steps_at_once = steps_at_once
        self._seconds: deque[float] = deque(maxlen=_RECENT)  # of a step
        self._patience = 1.0

    def observe(self, result: ExecutionResult) -> None:
        """Takes into account an execution that has made all its steps."""
        self._seconds.append(result.seconds / result.steps)
        self._patience = 1.0

    def limit(self, steps: int) -> float:
        """Seconds after which an execution of `steps` steps takes much longer than others."""
        if not self._seconds:
            return math.inf  # the first one is also made ready to run
        return self._patience * max(_MIN_SECONDS, _TIMES_LONGER * steps * statistics.median(self._seconds))

    def revoked(self) -> float:
        """Seconds in which a worker that runs ends an execution whose token was revoked just now.

        Twice as many the next time, unless an execution has made all its steps before.
        """
        step = self._steps_at_once * statistics.median(self._seconds)
        limit, self._patience = self._patience * max(_STOPPED_SECONDS, _STOPPED_STEPS * step), 2 * self._patience
        return limit
