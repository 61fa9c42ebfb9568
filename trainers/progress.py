"""How far a long job is, and how long it will take."""

from __future__ import annotations

import sys
import time

_SECONDS = 5.0  # between two lines
_ON_TERMINAL = 0.2


class Progress:
    """Says now and then how far a job is: on a terminal in one line that changes, else a line every five seconds.

    Args:
      say: prints a line, in the process that leads.
      total: how much there is to do.
      unit: of what, as "samples".
    """

    def __init__(self, say, total: float, unit: str, *, stream=None, clock=time.monotonic):
        self._say, self._total, self._unit, self._clock = say, total, unit, clock
        stream = stream or sys.stdout
        self._terminal = stream if stream.isatty() else None
        self._began = self._shown = clock()
        self._open = False

    def __call__(self, done: float) -> None:
        """So much of the total is done."""
        now = self._clock()
        if now - self._shown < (_ON_TERMINAL if self._terminal else _SECONDS) or not done:
            return
        self._shown = now
        rate = done / (now - self._began)
        line = f"{done:,} of {self._total:,} {self._unit}  {rate:.3g}/s  {(self._total - done) / rate:,.0f} s left"
        if self._terminal:
            self._terminal.write(f"\r{line}\x1b[K")
            self._terminal.flush()
            self._open = True
        else:
            self._say(line)

    def close(self) -> None:
        """Clears the line on the terminal."""
        if self._open and self._terminal:
            self._terminal.write("\r\x1b[K")
            self._terminal.flush()
