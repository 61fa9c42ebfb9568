"""A thread that reads batches of the user's: as many as are wanted, each within a time limit."""

# pyright: strict

from __future__ import annotations

import itertools
import logging
import os
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tf2dist.errors import TrainingError, UsageError
from tf2dist.input.input_progress import InputProgress, Unwatched
from tf2dist.system import environment_variables

_log = logging.getLogger("tf2dist")

BATCH_SECONDS = 300.0  # that a batch may take, unless TF2DIST_BATCH_TIMEOUT says otherwise
_NAMED_SECONDS = 30.0  # after so many it is said that a batch has not come
_AHEAD = 2  # batches that are read before they are asked for
_END_SECONDS = 5.0  # that the thread gets to end
_LOOK_SECONDS = 0.5


class BatchReader:
    """Reads batches in a thread of its own, no more than are allowed, so that the user's data is where it should be.

    Args:
      open_batches: called in that thread; returns the batches. If they are a generator, it is closed there, too.
      what: names the data in messages.
      first: number of the first batch, in messages.
      put_back: gets the batches that were read and that nobody has taken.
      progress: is told when batches are passed over, and when one does not come.
      reads_again: does the first batch come when those before it were read again, however long that takes?
      seconds: that a batch may take, unless `TF2DIST_BATCH_TIMEOUT` says otherwise.

    Attributes:
      failure: what was wrong with the data, as it was raised where they are taken; None if nothing was.
    """

    def __init__(
        self,
        open_batches: Callable[[], Iterator[Any]],
        what: str,
        first: int = 0,
        put_back: Callable[[list[Any]], None] | None = None,
        progress: InputProgress | None = None,
        seconds: float = BATCH_SECONDS,
        *,
        reads_again: bool = False,
    ) -> None:
        self.failure: BaseException | None = None
        self._progress, self._reads_again = progress or Unwatched(), reads_again
        self._open, self._what, self._first, self._put_back = open_batches, what, first, put_back
        try:
            self._limit = environment_variables.seconds(environment_variables.BATCH_TIMEOUT, os.environ, seconds)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self._changed = threading.Condition()
        self._ready: deque[Any] = deque()
        self._allowed = self._read = self._taken = self._skipped = 0
        self._ended = self._closed = False  # by the data, and by `close`
        self._error: BaseException | None = None  # of the thread
        self._thread = threading.Thread(target=self._run, name="tf2dist-batches", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Does nobody want more batches?"""
        return self._closed

    def has_skipped(self) -> None:
        """Says, in the thread that reads, that it passed over a batch; the time for the next one begins."""
        self._progress.moves()
        with self._changed:
            self._skipped += 1
            if self._skipped == 1:
                _log.info("tf2dist: %s is read again up to batch %d, where training goes on", self._what, self._first)

    def allow(self, batches: int) -> None:
        """Lets so many more be read than were taken so far."""
        with self._changed:
            self._allowed = self._taken + batches
            self._changed.notify_all()

    def take(self) -> list[Any]:
        """Waits for the next batch; returns it in a list, or an empty list where the data ends or after `close`.

        It waits without a limit as long as no more batches are allowed.

        Raises:
          TrainingError: the batch has not come in time.
          BaseException: what the user's code has raised, with a note that says for which batch.
        """
        try:
            return self._take()
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def wanted(self) -> Iterator[Any]:
        """Yields the batches as they are wanted.

        Raises:
          TrainingError: as `take`, or the data has ended before the last one that is allowed.
        """
        while taken := self.take():
            yield taken[0]
        if not self._closed:
            found, expected = self._first + self._taken, self._first + self._allowed
            self.failure = TrainingError(f"{self._what} has ended after {found} batches, and {expected} were to come")
            raise self.failure

    def _take(self) -> list[Any]:
        waited, skipped = 0.0, 0
        with self._changed:
            while not (self._ready or self._ended or self._closed or self._error):
                began_to_wait = self._taken < self._allowed
                if self._skipped != skipped:
                    waited, skipped = 0.0, self._skipped
                if not self._changed.wait(_LOOK_SECONDS) and began_to_wait:
                    waited += _LOOK_SECONDS  # and no clock, which goes on while the machine stands still
                    self._progress.waits_for_input(True)
                    self._check_time(waited)
            if waited:
                self._progress.waits_for_input(False)
            if self._ready:
                self._taken += 1
                self._changed.notify_all()
                return [self._ready.popleft()]
            if self._error and not self._closed:
                raise self._error
            return []

    def _check_time(self, waited: float) -> None:
        number = self._first + self._taken
        if waited >= self._limit and not (self._reads_again and not self._taken):
            raise TrainingError(
                f"batch {number} of {self._what} has not come in {self._limit:.0f} s; more time is given by "
                f"{environment_variables.BATCH_TIMEOUT}"
            )
        if waited == _NAMED_SECONDS:
            _log.warning("batch %d of %s has not come for %.0f s", number, self._what, waited)

    def close(self) -> None:
        """Reads no more; what was read and not taken is put back. A thread that the user's code holds up is left."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():  # which may be the one that collects garbage
            self._thread.join(_END_SECONDS)
        with self._changed:
            left, self._ready = [*self._ready], deque[Any]()
        if left and self._put_back is not None:
            self._put_back(left)

    def all(self) -> Iterator[Any]:
        """Yields all batches, and closes the reader when they are no more wanted.

        Raises:
          BaseException: as `take`.
        """
        try:
            self.allow(1 << 62)
            while taken := self.take():
                yield taken.pop()
        finally:
            self.close()

    def _may_read(self) -> bool:
        """Waits until another batch is wanted; false if none ever is."""
        with self._changed:
            while not self._closed and (self._read >= self._allowed or len(self._ready) >= _AHEAD):
                self._changed.wait()
            return not self._closed

    def _run(self) -> None:
        batches: Any = None
        try:
            while self._may_read():
                batches = self._open() if batches is None else batches
                found = [*itertools.islice(batches, 1)]
                with self._changed:
                    self._ended = not found
                    self._ready.extend(found)
                    self._read += len(found)
                    self._changed.notify_all()
                if self._ended:
                    return
        except BaseException as error:
            error.add_note(f"(at batch {self._first + self._read} of {self._what}, counted from 0)")
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            if isinstance(batches, types.GeneratorType):
                batches.close()
