"""Which thread reports that this process fails, and what is called before the process ends.

The main thread and the thread that monitors the other tasks may both notice the loss of a task, and only the first one
of them reports it. The main thread's error says more, so the monitor gives it `REPORT_GRACE` seconds to raise, or to
call `fail`, before it reports and ends the process.
"""

# pyright: strict

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable

from tf2dist.runtime.process_exit import exit_now
from tf2dist.system.limited_call import call_for

REPORT_GRACE = 1.0  # seconds that the main thread gets to report a loss that ends the job
EXIT_GRACE = 30.0  # seconds that the main thread gets to exit once it has reported
_CALLBACK_GRACE = 5.0  # seconds for the callbacks of a process that the monitor ends, and then for its line

_log = logging.getLogger("tf2dist")


class FailureReporter:
    """The failure of this process: reported once, by one thread, after the callbacks that were registered."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], object]] = []
        self._lock = threading.Lock()  # of the two flags below
        self._failed = False
        self._monitor_reports = False

    @property
    def has_failed(self) -> bool:
        """Whether this process ends with an error."""
        return self._failed

    def on_failure(self, callback: Callable[[], object]) -> None:
        """Has `callback` called once if this process ends with an error; possibly in another thread."""
        self._callbacks.append(callback)

    def forget(self, callback: Callable[[], object]) -> None:
        """Takes back `on_failure(callback)`; does nothing if it is not registered."""
        with contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    def fail(self) -> None:
        """Records that this process ends with an error, and calls the callbacks. Call it before you report the error.

        Does not return when the monitor has begun to report: it ends the process.
        """
        with self._lock:
            self._failed = True
            ending = self._monitor_reports
        if ending:
            threading.Event().wait()
        self._call_callbacks()

    def end_process(self, why: str, status: int) -> None:
        """Ends this process, since the job cannot go on; for threads of the monitor.

        Args:
          why: one line, logged unless the main thread reports an error of its own.
          status: the exit status.
        """
        reports = False
        try:
            if reports := self._claim_report():
                # Callbacks may write to a disk that hangs, the log to a full pipe; the cause is said all the same.
                call_for(_CALLBACK_GRACE, self._call_callbacks)
                call_for(_CALLBACK_GRACE, lambda: _log.error("tf2dist: %s", why))
            else:
                threading.Event().wait(EXIT_GRACE)  # the main thread exits in this time; TensorFlow may hang there
        finally:
            exit_now(status if reports else 1)

    def at_exit(self, end: Callable[[], object]) -> None:
        """Calls `end` when the program ends without an error; else `fail`."""

        def finish() -> None:
            if self._failed or _uncaught_exception() is not None:
                self.fail()
            else:
                end()

        atexit.register(finish)

    def _claim_report(self) -> bool:
        """Waits for the main thread to fail; returns True, from then on exclusively, if it has not in time."""
        deadline = time.monotonic() + REPORT_GRACE
        while True:
            with self._lock:
                if self._failed or _uncaught_exception() is not None:
                    return False
                if time.monotonic() >= deadline:
                    self._failed = self._monitor_reports = True
                    return True
            time.sleep(0.02)

    def _call_callbacks(self) -> None:
        while self._callbacks:
            with contextlib.suppress(Exception):
                self._callbacks.pop()()


def _uncaught_exception() -> BaseException | None:
    """Returns the exception that ends this program; None in an interactive shell, which goes on after one.

    Programs set the same variables for errors that they survive, as Tkinter does for those of its callbacks. Only the
    traceback of an exception that nobody has caught begins in the frame that no other has called.
    """
    frames = getattr(sys, "last_traceback", None)
    if hasattr(sys, "ps1") or frames is None or frames.tb_frame.f_back is not None:
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # Python 3.12; earlier ones
