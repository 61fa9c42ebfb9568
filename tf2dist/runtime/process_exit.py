"""The exit of a process whose threads in TensorFlow cannot be stopped."""

# pyright: strict

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

_FLUSH_GRACE = 5.0  # seconds to print what is buffered before the process exits


def exit_now(status: int) -> NoReturn:
    """Exits at once: a TensorFlow server cannot be stopped, and its threads must not outlive Python's end."""
    call_for(_FLUSH_GRACE, _flush)  # nobody may read what is printed
    os._exit(status)


def call_for(limit: float, function: Callable[[], object]) -> None:
    """Calls a function that may hang, and goes on after `limit` seconds; also while the interpreter ends."""
    thread = threading.Thread(target=function, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python 3.12 starts no thread any more when functions at exit are called
        function()
    else:
        thread.join(limit)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or a pipe without a reader
            stream.flush()
