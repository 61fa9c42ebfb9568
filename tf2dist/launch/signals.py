"""What SIGINT (Ctrl-C), SIGTERM and SIGHUP to the launcher do, and how its event loop receives them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator
from typing import Any, NamedTuple


class Response(NamedTuple):
    """What the launcher does about a signal.

    Attributes:
      status: the exit status of the launcher.
      reason: the same in words.
      kills: kill every process at once, and discard what they have printed; else they get SIGTERM, and time to end.
    """

    status: int
    reason: str
    kills: bool


def response(signum: signal.Signals, *, repeated: bool) -> Response:
    """Returns what a signal does: the first one ends the job, any other one (`repeated`) kills it."""
    return Response(128 + signum, f"ended by {signum.name}", kills=repeated)


class Interrupted(Exception):
    """A signal has come, inside of `SignalPipe.raising`."""

    def __init__(self, signum: int) -> None:
        self.signum = signal.Signals(signum)


class SignalPipe:
    """While this context is open, SIGINT, SIGTERM and SIGHUP do nothing but make `fd` readable.

    A signal that was ignored stays ignored, as nohup and a shell's background jobs rely on. Only the main thread can
    receive signals; in another thread this does nothing.
    """

    WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    _raises = False

    def __enter__(self) -> SignalPipe:
        self.fd, self._end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._wakeup = signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)
            for signum in self.WATCHED:
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._handle) or signal.SIG_DFL
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in self._before.items():
                signal.signal(signum, handler)
            signal.set_wakeup_fd(self._wakeup)
        os.close(self.fd)
        os.close(self._end)

    def _handle(self, signum: int, frame: object) -> None:
        if self._raises:
            self._raises = False  # one is enough
            raise Interrupted(signum)

    @contextlib.contextmanager
    def raising(self) -> Generator[None]:
        """Returns a context for what waits for other things than `fd`: the first signal raises `Interrupted` in it."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def read(self) -> list[signal.Signals]:
        """Returns the signals that came since the last call; call it when `fd` is readable."""
        return [signal.Signals(number) for number in os.read(self.fd, 4096) if number in self._before]
