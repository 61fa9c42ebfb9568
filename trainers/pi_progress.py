"""A progress meter for computations without epochs: how much is done, and the seconds that are left."""

from __future__ import annotations

import sys
import time

_LINE_SECONDS = 5.0  # between two lines
_TERMINAL_SECONDS = 0.2  # between two changes of the line on a terminal


class ProgressMeter:
    """Shows how much of a job is done: on a terminal in one line that changes, otherwise a line every five seconds.

    Args:
      say: prints a line, in the process that leads.
      total: how much there is to do.
      unit: its plural, as "samples".
    """

    def __init__(self, say, total: float, unit: str, *, stream=None, clock=time.monotonic):
        self._say, self._total, self._unit, self._clock = say, total, unit, clock
        stream = stream or sys.stdout
        self._terminal = stream if stream.isatty() else None
        self._began = self._shown = clock()
        self._line_shown = False

    def __call__(self, done: float) -> None:
        """Shows that `done` of the total is done."""
        now = self._clock()
        if now - self._shown < (_TERMINAL_SECONDS if self._terminal else _LINE_SECONDS) or not done:
            return
        self._shown = now
        rate = done / (now - self._began)
        line = f"{done:,} of {self._total:,} {self._unit}  {rate:.3g}/s  {(self._total - done) / rate:,.0f} s left"
        if self._terminal:
            self._terminal.write(f"\r{line}\x1b[K")
            self._terminal.flush()
            self._line_shown = True
        else:
            self._say(line)

    def close(self) -> None:
        """Clears the line on the terminal."""
        if self._line_shown and self._terminal:
            self._terminal.write("\r\x1b[K")
            self._terminal.flush()
