"""Signals as something to poll."""

from __future__ import annotations

import os
import signal
import threading


class Signals:
    """While this context is open, SIGINT, SIGTERM and SIGHUP do nothing but make `fd` readable.

    A signal that was ignored stays so: nohup and a shell's background jobs count on it. Only the main thread can
    receive signals; in another one this does nothing.
    """

    WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> Signals:
        self.fd, self._end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._wakeup = signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)
            for signum in self.WATCHED:
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, lambda *_: None) or signal.SIG_DFL
        return self

    def __exit__(self, *_) -> None:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in self._before.items():
                signal.signal(signum, handler)
            signal.set_wakeup_fd(self._wakeup)
        os.close(self.fd)
        os.close(self._end)

    def read(self) -> list[signal.Signals]:
        """The signals that came since the last call, once `fd` is readable."""
        return [signal.Signals(number) for number in os.read(self.fd, 4096) if number in self._before]
