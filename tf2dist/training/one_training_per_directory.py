"""A training says every few seconds that it writes to its directory, and warns of another one that does so too."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading

from tf2dist.training.status_file import STATUS_SECONDS, read_status, read_writer, write_status

_log = logging.getLogger("tf2dist")
_WRITER = re.compile(r"process (\d+) of (.*)")


class StatusUpdates:
    """Keeps the status at "training" until `end`, and warns of another training that does so in the same directory.

    Raises:
      OSError: the directory cannot be written.
    """

    def __init__(self, directory: str):
        self._directory = directory
        self._writer = f"process {os.getpid()} of {socket.gethostname()}"
        self._over = threading.Event()
        os.makedirs(directory, exist_ok=True)
        self._is_alone = True
        self._warn_of_one_before()
        write_status(directory, "training", writer=self._writer)
        self._thread = threading.Thread(target=self._update, daemon=True)
        self._thread.start()

    def _update(self) -> None:
        while not self._over.wait(STATUS_SECONDS):
            with contextlib.suppress(OSError):
                if self._is_alone and (other := self._other_writer()):
                    self._warn_of(other)
                write_status(self._directory, "training", writer=self._writer)

    def _warn_of(self, other: str) -> None:
        self._is_alone = False
        _log.warning(
            "tf2dist: %s writes checkpoints to %s too: each removes the other's, and goes on from them; give each "
            "training a directory of its own", other, self._directory,
        )  # fmt: skip

    def _warn_of_one_before(self) -> None:
        """Warns of another training that is under way on this host; of other hosts nobody knows whether it has died."""
        other = self._other_writer()
        found = _WRITER.fullmatch(other)
        if read_status(self._directory)[0] != "training" or not found or found[2] != socket.gethostname():
            return
        with contextlib.suppress(OSError):
            os.kill(int(found[1]), 0)
            self._warn_of(other)

    def _other_writer(self) -> str:
        """Returns the other training that has written the status file last; "" if this one has."""
        writer = read_writer(self._directory)
        return writer if writer != self._writer else ""

    def end(self, status: str) -> None:
        """Writes the last status.

        Raises:
          OSError: it cannot be written.
        """
        self._over.set()
        self._thread.join()
        write_status(self._directory, status, writer=self._writer)
