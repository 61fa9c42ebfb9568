"""How many steps this process's calls of `fit` have made, for the launcher that has started it and wants to know."""

# pyright: strict

from __future__ import annotations

import os

from tf2dist.system.environment_variables import STEP_FILE
from tf2dist.system.step_file import StepFile, Steps


class StepReport:
    """Counts the calls of `fit` in a process, and writes the steps of the one under way to the launcher's file.

    It is opened by the first call: the module may have been imported before the process got its environment.
    """

    def __init__(self) -> None:
        self._file: StepFile | None = None
        self._earlier = self._call = self._steps = 0
        self._first = self._end = 0  # global steps of the call

    def begin(self, first: int, end: int, *, again: bool = False) -> None:
        """Notes that a call of `fit` begins, which is to train from one global step to another one.

        Or that the one under way begins `again`, from an earlier step than it had reached.
        """
        if not again:
            self._earlier += self._steps
            self._call += 1
        self._steps, self._first, self._end = 0, first, end
        path = os.environ.get(STEP_FILE)
        if path and self._file is None:
            try:
                self._file = StepFile(path)
            except OSError:  # this process is not the launcher's own, but one that a program of it has started
                os.environ.pop(STEP_FILE)

    def report(self, step: int) -> None:
        """Writes how many steps of the call are behind it, at this global step.

        Never fewer than before, unless it has begun again.
        """
        # A checkpoint may be from before the call, or from a later one of the same directory.
        self._steps = max(self._steps, min(step, self._end) - self._first)
        if self._file is not None:
            self._file.write(Steps(self._earlier, self._call, self._steps))
