"""Writes checkpoints one after the other, while training goes on."""

# pyright: strict

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable

from tf2dist.errors import reason
from tf2dist.training.checkpoint_snapshot import Snapshot

_log = logging.getLogger("tf2dist")


class CheckpointWriter:
    """Writes one checkpoint at a time.

    Args:
      in_background: in a thread, of those that are no live snapshots.
    """

    def __init__(self, in_background: bool) -> None:
        self.in_background = in_background
        self._under_way: concurrent.futures.Future[None] | None = None

    def write(self, snapshot: Snapshot, write: Callable[[], None]) -> None:
        """Has `write` called, which writes this snapshot, when the one before is written; returns soon if it may.

        Raises:
          Exception: what `write` raises, if it was called here, or the one before it.
        """
        self.wait()
        if snapshot.is_live or not self.in_background:
            write()
            return
        future = self._under_way = concurrent.futures.Future[None]()

        def run() -> None:
            try:
                write()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        # No daemon: a program that ends without waiting still writes the whole of it.
        threading.Thread(target=run, name="tf2dist checkpoint").start()

    def check(self) -> None:
        """Raises what the last `write` has raised, if it has ended. Once only."""
        if self._under_way is not None and self._under_way.done():
            self.wait()

    def wait(self) -> None:
        """Waits until what was begun is written; raises what it has raised, once only."""
        if self._under_way is None:
            return
        try:
            self._under_way.result()
        finally:
            if self._under_way.done():  # not if it was interrupted
                self._under_way = None

    def give_up(self, seconds: float) -> None:
        """Waits for so long until what was begun is written; if that fails, it makes no difference any more."""
        if self._under_way is None:
            return
        try:
            self._under_way.result(seconds)
            self._under_way = None
        except TimeoutError:
            _log.warning("tf2dist: the last checkpoint was not written within %g s", seconds)
        except Exception as error:
            self._under_way = None
            _log.warning("tf2dist: the last checkpoint was not written: %s", reason(error))
