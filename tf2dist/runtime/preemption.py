"""Preemption: a job is asked to stop (SIGTERM, `tf2dist.preempt`), saves, and ends so that it is started again.

A call of `fit` with a `Checkpoint` stops at its next step, after which all its peers stop, and saves. Outside of such a
call there is nothing to save: after one the program ends at once, and before one a signal ends the process as it
always would.
"""

# pyright: strict

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Generator
from typing import NoReturn

from tf2dist.errors import START_AGAIN, Preempted, UsageError
from tf2dist.runtime.sigterm import SigtermHandler
from tf2dist.system import environment_variables

_log = logging.getLogger("tf2dist")


class Preemption:
    """Whether the job was asked to stop, and whether this process has what it was trained in a checkpoint.

    Args:
      by_signal: does SIGTERM ask it to? TF2DIST_PREEMPTIBLE says so if that is None.
      leads: is this the task that leads the job? At its end it makes the file that TF2DIST_PREEMPTED_FILE names.
    """

    def __init__(self, by_signal: bool | None = None, *, leads: bool = True) -> None:
        self._by_signal, self._leads = by_signal, leads
        self._handler = SigtermHandler(self._on_sigterm, self._end_at_once)
        # A handler of a signal interrupts the main thread anywhere, so these are plain values without a lock.
        self._why = ""
        self._trainings = 0  # calls of fit under way that save when the job is asked to stop
        self._saved = False
        self._written = threading.Event()  # not while it is saved
        self._written.set()
        self._ending = False  # by `end`
        self._ends_main_thread = True
        self._leaving = False  # as every program at its end
        self._telling = threading.RLock()  # a handler of the program's own may ask while its main thread tells
        self._tell: Callable[[], object] = lambda: None
        self._told = False
        self._callbacks: list[Callable[[], object]] = []

    @property
    def stops_training(self) -> bool:
        """Is the call of `fit` that is under way to save and to end?"""
        return bool(self._why) and self._trainings > 0

    @property
    def ends_job(self) -> bool:
        """Was the job asked to stop, and does it for that? Its end is no failure then, whatever else comes in between.

        Platforms end tasks and the processes that make their data before all is saved. The job goes on from the last
        checkpoint then.
        """
        return bool(self._why) and (self._trainings > 0 or self._saved or self._ending)

    @property
    def _has_all_saved(self) -> bool:
        return self._saved and not self._trainings

    @property
    def ends_main_thread(self) -> bool:
        """Has `end` been called in the main thread, if at all? Elsewhere its exception ends another thread only."""
        return self._ends_main_thread

    @property
    def _may_end_at_once(self) -> bool:
        """Is all saved, and the program not at its end? That is not interrupted any more, and keeps its status."""
        leaves = self._ending or self._leaving or not threading.main_thread().is_alive()
        return self._has_all_saved and not leaves

    @property
    def by_signal(self) -> bool:
        """Does SIGTERM ask the job to stop?

        Raises:
          UsageError: TF2DIST_PREEMPTIBLE is neither 1 nor 0.
        """
        if self._by_signal is not None:
            return self._by_signal
        try:
            return environment_variables.switch(environment_variables.PREEMPTIBLE, os.environ)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def handle_sigterm(self) -> None:
        """Lets SIGTERM ask the job to stop, if it is to, and the program does not handle it itself. May be repeated.

        Raises:
          UsageError: as `by_signal`.
        """
        if self.by_signal:
            self._handler.install()

    def tell_by(self, tell: Callable[[], object]) -> None:
        """Sets how the other tasks of the job are told that it was asked to stop."""
        with self._telling:
            self._tell = tell
            if self._told:
                tell()

    def request(self, why: str) -> bool:
        """Asks the job to stop, in any thread, and tells its other tasks.

        Args:
          why: one line, which names the task and the cause.

        Returns:
          Whether it does so soon: not outside of a training that saves, nor without one before.
        """
        self._why = self._why or why
        with self._telling:
            told, self._told = self._told, True
            if not told:
                self._tell()
        if not told and self._leads and self._trainings:
            _log.warning("tf2dist: %s; the job saves after the step that is under way, and ends", self._why)
        return self._trainings > 0 or self._saved

    def offer(self, why: str) -> bool:
        """As `request`, but asks for nothing where the job would not stop."""
        return (self._trainings > 0 or self._saved) and self.request(why)

    @contextlib.contextmanager
    def training(self) -> Generator[None]:
        """Returns a context for a call of `fit` that saves and ends when the job is asked to stop."""
        self.handle_sigterm()
        self._trainings += 1
        self._saved = False
        try:
            yield
        finally:
            self._trainings -= 1

    def saved(self) -> None:
        """Notes that all that was trained so far is in a checkpoint, of which all tasks of the job know."""
        self._saved = True

    @contextlib.contextmanager
    def saving(self) -> Generator[None]:
        """Returns a context for what is saved before the end."""
        self._written.clear()
        try:
            yield
        finally:
            self._written.set()

    def wait_while_saving(self, limit: float) -> None:
        """Waits for the end of `saving`, if it is under way in another thread, for at most `limit` seconds."""
        self._written.wait(limit)

    def at_end(self, callback: Callable[[], object]) -> None:
        """Has `callback` called once when this process ends since the job was preempted; possibly in another thread."""
        self._callbacks.append(callback)

    def forget(self, callback: Callable[[], object]) -> None:
        """Takes back `at_end(callback)`; does nothing if it is not registered."""
        with contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    def leave(self) -> int:
        """Notes that the program is over, and is not to be interrupted any more; returns its exit status.

        That is 0, or START_AGAIN if it ends since the job was preempted. Then the other tasks know it, too.
        """
        self._leaving = True
        if not self._ending:
            return 0
        self.request(self._why)
        return START_AGAIN

    def end(self, *, alone: bool = False) -> NoReturn:
        """Ends the program, with status 75.

        Args:
          alone: see `Preempted`.

        Raises:
          Preempted: always.
        """
        self._ends_main_thread = threading.current_thread() is threading.main_thread()
        self.finish()
        raise Preempted(alone=alone)

    def end_if_requested(self) -> None:
        """Ends the program if the job was asked to stop and has saved.

        Raises:
          Preempted: it was.
        """
        if self._why and self._has_all_saved:
            self.end()

    def finish(self) -> None:
        """Calls what `at_end` has registered."""
        self._ending = True
        if self._leads and (mark := os.environ.get(environment_variables.PREEMPTED_FILE)):
            with contextlib.suppress(OSError):  # whoever waits for it has the exit status as well
                os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o600))
        while self._callbacks:
            with contextlib.suppress(Exception):
                self._callbacks.pop()()

    def _on_sigterm(self) -> bool:
        if self._may_end_at_once:
            _log.warning("tf2dist: SIGTERM; all that was trained is saved, and this process ends with status 75")
        return self.offer("SIGTERM")

    def _end_at_once(self) -> None:
        """In the main thread, wherever it is: ends the program unless a training is under way, which does so itself."""
        if self._may_end_at_once:
            self._why = self._why or "SIGTERM"
            self.end(alone=True)
        if self._trainings:
            self._why = self._why or "SIGTERM"
