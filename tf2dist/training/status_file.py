"""`status.json` in a directory of checkpoints: whether the training that writes there goes on.

An evaluator reads it. It holds "training", "done", "failed" or "preempted" (the job was asked to stop, and is to be
started again), with who wrote it, and a time that is updated every few seconds. Of a training that a callback had
stopped, and that was over when its job was preempted, it also holds the step, for the next job must not go on with it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time

from tf2dist.system.atomic_files import replacing

STATUS_FILE = "status.json"
STATUS_SECONDS = 5.0  # between two updates

_log = logging.getLogger("tf2dist")


def read_status(directory: str) -> tuple[str, float]:
    """What a training in this directory last said, and when: one of the states above, or "", with a Unix time."""
    found = _read(directory)
    state, when = found.get("state"), found.get("time")
    if isinstance(state, str) and isinstance(when, (int, float)) and math.isfinite(when):
        return state, when
    return "", 0.0


def read_stopped_at(directory: str) -> int | None:
    """The global step at which a callback had stopped a training before its job was preempted; None if none had."""
    found = _read(directory)
    step = found.get("stopped_at")
    return step if found.get("state") == "preempted" and isinstance(step, int) and step >= 0 else None


def read_writer(directory: str) -> str:
    """Who has written the status; "" if nobody says so."""
    writer = _read(directory).get("writer")
    return writer if isinstance(writer, str) else ""


def _read(directory: str) -> dict[str, object]:
    """What the file holds; nothing where there is none, or one that nobody here has written."""
    try:
        with open(os.path.join(directory, STATUS_FILE)) as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_status(directory: str, state: str, *, stopped_at: int | None = None, writer: str = "") -> None:
    """Writes a state, with the time.

    Args:
      directory: of the checkpoints.
      state: "training", "done", "failed" or "preempted".
      stopped_at: see `read_stopped_at`.
      writer: who says so; of two trainings that is not the same.

    Raises:
      OSError: the disk is full, say; the last status stays.
    """
    status = {"state": state, "time": time.time(), "writer": writer} | (
        {} if stopped_at is None else {"stopped_at": stopped_at}
    )
    with replacing(os.path.join(directory, STATUS_FILE)) as (part,), open(part, "w") as file:
        json.dump(status, file)
