"""How many steps an execution makes (Keras's `steps_per_execution`), measured and chosen while training."""

from __future__ import annotations

import math

from tf2dist.errors import UsageError

_TARGET_SECONDS = 0.4  # of an execution: long against the cost of a call (milliseconds on a worker), short for people
_LONGEST_SECONDS = 3.0  # that is aimed at however many workers there are: who asks a job to stop waits for it
_PER_SECOND = 50.0  # executions of all workers: handing out and accounting one takes this process about 2 ms
_LIMIT_TARGETS = 2.0  # an execution is to end after so many times what is aimed at
_MIN_SECONDS = 0.05  # the steps left in an epoch are not spread over workers in shorter executions than this
_MAX_STEPS = 2000
EVALUATION_BATCHES = 100  # in one execution of evaluation, at most; bounds how long a signal has to wait


class StepsPerExecutionTuner:
    """Chooses the steps of the next execution so that it takes about 0.4 s, or always returns a fixed number.

    Where there are so many workers that more than 50 executions would end in a second, they take longer, up to 3 s.

    The first execution makes one step and includes tracing, so its time says nothing. From then on the number at most
    doubles each time: a single measurement on a busy machine can be far off.

    Args:
      steps_per_execution: a fixed number of steps, or None to choose.

    Raises:
      ValueError: a number below 1.
    """

    def __init__(self, steps_per_execution: int | None = None):
        if steps_per_execution is not None and steps_per_execution < 1:
            raise UsageError(f"steps_per_execution must be at least 1, found {steps_per_execution}")
        self._fixed = steps_per_execution
        self._steps, self._target = steps_per_execution or 1, _TARGET_SECONDS
        self._min_steps = 1
        self._observed = 0

    def next(self, left: int, in_flight: int = 1) -> int:
        """Steps for the next execution, if `left` steps are to be spread over executions that are under way together.

        Of two that a worker has, the second one waits for the first.
        """
        self._target = min(max(_TARGET_SECONDS, in_flight / 2 / _PER_SECOND), _LONGEST_SECONDS)
        fair = max(self._min_steps, left // in_flight) if self._fixed is None else left
        return min(self._steps, fair, left)

    @property
    def limit(self) -> float:
        """Seconds after which an execution is to end: a slow worker makes fewer steps than others in one."""
        return _LIMIT_TARGETS * self._target if self._fixed is None else math.inf

    def observe(self, steps: int, seconds: float) -> None:
        """Takes into account an execution of `steps` steps that took `seconds`."""
        if self._fixed is not None:
            return
        self._observed += 1
        if self._observed == 1 or seconds <= 0:
            return
        best = self._target * steps / seconds
        self._steps = max(1, min(int(best), 2 * self._steps, _MAX_STEPS))
        self._min_steps = max(1, min(int(_MIN_SECONDS * steps / seconds), self._steps))
