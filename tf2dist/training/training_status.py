"""`status.json` in a directory of checkpoints: whether the training that writes there goes on.

An evaluator reads it. It holds "training", "done", "failed" or "preempted" (the job was asked to stop, and is to be
started again), with a time that is updated every few seconds. Of a training that a callback had stopped, and that was
over when its job was preempted, it also holds the step, for the next job must not go on with it.
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
    """What a training in this directory last said, and when: one of the states above, or "", with a Unix time."""
    try:
        with open(os.path.join(directory, STATUS_FILE)) as file:
            found = json.load(file)
        return found["state"], found["time"]
    except (OSError, ValueError, KeyError):
        return "", 0.0


def read_stopped_at(directory: str) -> int | None:
    """The global step at which a callback had stopped a training before its job was preempted; None if none had."""
    try:
        with open(os.path.join(directory, STATUS_FILE)) as file:
            found = json.load(file)
        return int(found["stopped_at"]) if found["state"] == "preempted" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_status(directory: str, state: str, stopped_at: int | None = None) -> None:
    """Writes a state, with the time.

    Args:
      directory: of the checkpoints.
      state: "training", "done", "failed" or "preempted".
      stopped_at: see `read_stopped_at`.

    Raises:
      OSError: the disk is full, say; the last status stays.
    """
    status = {"state": state, "time": time.time()} | ({} if stopped_at is None else {"stopped_at": stopped_at})
    with replacing(os.path.join(directory, STATUS_FILE)) as (part,), open(part, "w") as file:
        json.dump(status, file)


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
        """Writes the last status.

        Raises:
          OSError: it cannot be written.
        """
        self._over.set()
        self._thread.join()
        write_status(self._directory, status)
