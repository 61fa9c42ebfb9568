"""The exit of a process whose threads in TensorFlow cannot be stopped."""

# pyright: strict

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import NoReturn

_FLUSH_GRACE = 5.0  # seconds to print what is buffered before the process exits


def exit_now(status: int) -> NoReturn:
    """Exits at once: a TensorFlow server cannot be stopped, and its threads must not outlive Python's end."""
    flush = threading.Thread(target=_flush, daemon=True)
    flush.start()
    flush.join(_FLUSH_GRACE)  # nobody may read what is printed
    os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or a pipe without a reader
            stream.flush()
