"""Calls of functions that may hang."""

# pyright: strict

import threading
from collections.abc import Callable


def call_for(limit: float, function: Callable[[], object]) -> None:
    """Calls a function that may hang, and goes on after `limit` seconds; also while the interpreter ends."""
    thread = threading.Thread(target=function, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python 3.12 starts no thread any more when functions at exit are called
        function()
    else:
        thread.join(limit)
