"""How many steps an execution should run."""

from __future__ import annotations

_SECONDS = 0.4  # long against the cost of a call (some milliseconds, if a worker makes it), short for a person
_LEAST = 0.05  # seconds; what is left is not cut into shorter executions than this to spread it over workers
_MOST = 2000  # steps


class Pace:
    """Chooses the steps of the next execution, so that each takes about 0.4 s, or always the number it was given.

    The first execution runs one step and includes tracing, so its time says nothing. From then on the length
    grows at most twofold at a time: a single measurement on a busy machine can be far off.

    Args:
      steps_per_execution: a fixed number of steps, or None to choose.
    """

    def __init__(self, steps_per_execution: int | None = None):
        if steps_per_execution is not None and steps_per_execution < 1:
            raise ValueError(f"steps_per_execution must be at least 1, found {steps_per_execution}")
        self._fixed = steps_per_execution
        self._steps = steps_per_execution or 1
        self._least = 1
        self._warm = 0

    def next(self, left: int, workers: int = 1) -> int:
        """Steps for the next execution, when `left` steps are to be spread over `workers`."""
        fair = max(self._least, left // workers) if self._fixed is None else left
        return min(self._steps, fair, left)

    def observe(self, steps: int, seconds: float) -> None:
        """Learns from an execution of `steps` steps that took a worker `seconds`."""
        if self._fixed is not None:
            return
        self._warm += 1
        if self._warm == 1 or seconds <= 0:
            return
        best = _SECONDS * steps / seconds
        self._steps = max(1, min(int(best), 2 * self._steps, _MOST))
        self._least = max(1, min(int(_LEAST * steps / seconds), self._steps))
