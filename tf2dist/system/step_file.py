"""A file with the number of training steps that a process has made, for the launcher that has started it."""

from __future__ import annotations

import os
import struct

_FORM = struct.Struct("<q")
_CALL = 1 << 40  # more steps than a call of fit makes


class StepFile:
    """Two numbers in a file of 8 bytes, so that no reader finds half of them: which call of `fit`, and its steps.

    Args:
      path: of the file, which must be there.

    Raises:
      OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, call: int, steps: int) -> None:
        """Writes how many steps of a call, counted from 1 in each process, are behind it."""
        os.pwrite(self._fd, _FORM.pack(call * _CALL + min(steps, _CALL - 1)), 0)

    def read(self) -> tuple[int, int] | None:
        """Returns (call, steps) as they were written last; None before."""
        data = os.pread(self._fd, _FORM.size, 0)
        return divmod(_FORM.unpack(data)[0], _CALL) if len(data) == _FORM.size else None

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)
