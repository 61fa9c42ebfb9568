"""The exit of a process whose threads in TensorFlow cannot be stopped."""

# pyright: strict

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

from tf2dist.system.limited_call import call_for

_FLUSH_GRACE = 5.0  # seconds to print what is buffered before the process exits


def exit_now(status: int) -> NoReturn:
    """Exits at once: a TensorFlow server cannot be stopped, and its threads must not outlive Python's end."""
    call_for(_FLUSH_GRACE, _flush)  # nobody may read what is printed
    os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or a pipe without a reader
            stream.flush()
