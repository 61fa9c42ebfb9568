"""A file with the number of training steps that a process has made, for the launcher that has started it."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

_FORM = struct.Struct("<3q")


class Steps(NamedTuple):
    """How far a process is.

    Attributes:
      earlier: steps of the calls of `fit` before the one under way.
      call: the number of that one, counted from 1 in each process.
      steps: those of that one.
    """

    earlier: int
    call: int
    steps: int


class StepFile:
    """`Steps`, written by one process and read by another one meanwhile.

    Args:
      path: of the file, which must be there.

    Raises:
      OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, steps: Steps) -> None:
        """Writes them in the place of those before."""
        os.pwrite(self._fd, _FORM.pack(*steps), 0)

    def read(self) -> Steps | None:
        """Returns them as they were written last; None where nothing was."""
        data = os.pread(self._fd, _FORM.size, 0)
        while data != (again := os.pread(self._fd, _FORM.size, 0)):  # half of it may have been from before
            data = again
        return Steps(*_FORM.unpack(data)) if len(data) == _FORM.size else None

    def clear(self) -> None:
        """Forgets what was written."""
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)
