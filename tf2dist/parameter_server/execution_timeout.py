"""The timeout of an execution, from how long others of its kind took."""

from __future__ import annotations

import math
import statistics
from collections import deque

_RECENT = 32  # executions
_TIMES_LONGER = 4.0  # than others on a busy machine
_MIN_SECONDS = 1.5


class ExecutionTimeout:
    """A multiple of the median that a step took in the last executions, whichever workers made them.

    Args:
      first: seconds to wait while none has ended: the first is also made ready to run.
    """

    def __init__(self, first: float = math.inf):
        self._first = first
        self._seconds: deque[float] = deque(maxlen=_RECENT)  # of a step
        self._factor = 1.0

    def observe(self, steps: int, seconds: float) -> None:
        """Takes into account an execution that has made its steps."""
        self._seconds.append(seconds / steps)
        self._factor = 1.0

    def next(self, steps: int) -> float:
        """Seconds after which an execution of `steps` steps is not waited for, while others have nothing to do.

        Twice as many each time, until one has made its steps: it may be that none can do better.
        """
        usual = _TIMES_LONGER * steps * statistics.median(self._seconds) if self._seconds else self._first
        limit = self._factor * max(_MIN_SECONDS, usual)
        self._factor *= 2
        return limit
