"""How a process gets SIGTERM: the first is a request, which a thread handles; a later one ends the process at once.

Python runs the handlers of signals in its main thread, between two of its own instructions: not while that thread is
inside of TensorFlow, which may be for long. What the system writes into the wakeup pipe arrives at once.
"""

# pyright: strict

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from tf2dist.system import linux
from tf2dist.system.linux import SAME_REQUEST

_HANDLED = b"\0"  # written into the pipe by the handler; the system writes the number of the signal


class SigtermHandler:
    """Handles SIGTERM, once `install` was called.

    Args:
      on_request: called in a thread at the first SIGTERM; returns whether this process goes on for now. If it does not,
        the signal ends it, as it would without this handler.
      in_main_thread: called in the main thread at each SIGTERM, as soon as that can be. It may raise an exception, and
        must not wait for a lock that the main thread may hold.
    """

    def __init__(self, on_request: Callable[[], bool], in_main_thread: Callable[[], object]) -> None:
        self._on_request, self._in_main_thread = on_request, in_main_thread
        self._requested: float | None = None  # when, in seconds of the monotonic clock
        self._unhandled = 0  # signals that came by the system's way, and whose handler was not called yet
        self._pipe: int | None = None  # its end for writing
        self._held = False  # while this process forks

    def install(self) -> bool:
        """Handles SIGTERM from now on; may be called again, where TensorFlow may have put a handler of its own.

        Returns:
          False, with nothing changed, where the program handles or ignores SIGTERM itself, or outside of its main
          thread. Another `SigtermHandler` gives way: this one knows more of what the process does.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        found = signal.getsignal(signal.SIGTERM)
        earlier = getattr(found, "__self__", None)
        if not (found in (signal.SIG_DFL, None) or isinstance(earlier, SigtermHandler)):
            return False
        if self._pipe is None:
            read, self._pipe = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._pipe, False)
            os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._forget)
            threading.Thread(target=self._watch, args=(read,), name="sigterm", daemon=True).start()
        before = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        ours = (-1, self._pipe, earlier._pipe if isinstance(earlier, SigtermHandler) else None)
        if before not in ours:  # of an event loop; then the handler tells the thread
            signal.set_wakeup_fd(before)
        signal.signal(signal.SIGTERM, self._handle)
        return True

    def _handle(self, signum: int, frame: Any) -> None:
        assert self._pipe is not None
        with contextlib.suppress(BlockingIOError):
            os.write(self._pipe, _HANDLED)
        self._in_main_thread()

    def _watch(self, read: int) -> None:
        while True:
            for byte in os.read(read, 64):
                if byte == signal.SIGTERM:
                    if signal.getsignal(signal.SIGTERM) != self._handle:
                        continue  # the program has installed a handler of its own since then
                    self._unhandled += 1
                    self._arrived()
                elif byte == _HANDLED[0]:
                    if not self._unhandled:  # the pipe is no longer the one that the system writes into
                        self._arrived()
                    self._unhandled = 0

    def _arrived(self) -> None:
        now = time.monotonic()
        if self._requested is None:
            self._requested = now
            goes_on = self._on_request()
        else:
            goes_on = now - self._requested < SAME_REQUEST
        if not goes_on:
            linux.end_by(signal.SIGTERM)

    def _hold(self) -> None:
        """Before a fork: what the child gets before `_forget` waits until then, and is not taken for this process's."""
        self._held = signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def _release(self) -> None:
        if self._held:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def _forget(self) -> None:
        """In a process that this one has forked, for its data, say: who ends that by SIGTERM means no job."""
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if (found := signal.set_wakeup_fd(-1)) not in (-1, self._pipe):
            signal.set_wakeup_fd(found)
        self._release()
