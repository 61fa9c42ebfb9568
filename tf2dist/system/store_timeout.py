"""The time limit of every call of an object store: without an answer, or in a transfer without progress."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tf2dist.errors import UsageError
from tf2dist.system import environment_variables

TIMEOUT = 60.0  # seconds, unless TF2DIST_FILES_TIMEOUT says otherwise
_Result = TypeVar("_Result")


class NoAnswerError(Exception):
    """The store has not answered, or the transfer has not come on, for as long as it may take."""


class FailedError(Exception):
    """What the call has raised is `error`."""

    def __init__(self, error: BaseException):
        super().__init__(error)
        self.error = error


def limit() -> float:
    """Returns the limit in seconds. Raises UsageError if TF2DIST_FILES_TIMEOUT says what cannot be."""
    try:
        return environment_variables.seconds(environment_variables.FILES_TIMEOUT, os.environ, TIMEOUT)
    except ValueError as error:
        raise UsageError(str(error)) from None


def call(seconds: float, work: Callable[[Callable[[], None]], _Result]) -> _Result:
    """Returns what `work` does in a thread; it calls its argument whenever it has come on.

    A library may wait for ever, whatever it was told. A thread that does is left behind, and ends with the process; one
    that comes on all the same ends then.

    Raises:
      NoAnswerError: it has neither returned nor come on for so many seconds.
      FailedError: `work` has raised an exception.
    """
    events: queue.Queue[tuple[str, Any]] = queue.Queue()
    given_up = threading.Event()

    def beat() -> None:
        if given_up.is_set():
            raise TimeoutError
        events.put(("on", None))

    def run() -> None:
        try:
            events.put(("done", work(beat)))
        except BaseException as error:
            events.put(("failed", error))

    threading.Thread(target=run, name="tf2dist-files", daemon=True).start()
    what: str = "on"
    found: Any = None
    while what == "on":
        try:
            what, found = events.get(timeout=seconds)
        except queue.Empty:
            given_up.set()
            raise NoAnswerError from None
    if what == "failed":
        raise FailedError(found)
    return cast("_Result", found)
