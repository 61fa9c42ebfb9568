"""`status.json` in a directory of checkpoints: whether the training that writes there goes on.

An evaluator reads it. It holds "training", "done" or "failed", with a time that is updated every few seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time

from tf2dist.system.atomic_files import replacing

STATUS_FILE = "status.json"
STATUS_SECONDS = 5.0  # between two updates


def read_status(directory: str) -> tuple[str, float]:
    """What a training in this directory last said, and when: "training", "done", "failed" or "" with a Unix time."""
    try:
        with open(os.path.join(directory, STATUS_FILE)) as file:
            found = json.load(file)
        return found["state"], found["time"]
    except (OSError, ValueError, KeyError):
        return "", 0.0


def write_status(directory: str, state: str) -> None:
    """Writes "training", "done" or "failed", with the time.

    Raises:
      OSError: the disk is full, say; the last status stays.
    """
    with replacing(os.path.join(directory, STATUS_FILE)) as (part,), open(part, "w") as file:
        json.dump({"state": state, "time": time.time()}, file)


class StatusUpdates:
    """Keeps the status at "training" until `end`.

    Raises:
      OSError: the directory cannot be written.
    """

    def __init__(self, directory: str):
        self._directory = directory
        self._over = threading.Event()
        os.makedirs(directory, exist_ok=True)
        write_status(directory, "training")
        self._thread = threading.Thread(target=self._update, daemon=True)
        self._thread.start()

    def _update(self) -> None:
        while not self._over.wait(STATUS_SECONDS):
            with contextlib.suppress(OSError):
                write_status(self._directory, "training")

    def end(self, status: str) -> None:
        """Writes the last status, "done" or "failed".

        Raises:
          OSError: it cannot be written.
        """
        self._over.set()
        self._thread.join()
        write_status(self._directory, status)
