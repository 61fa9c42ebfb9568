"""How a trainer that fails ends: which exit status, and which one line on standard error.

0: done. 1: the job failed. 2: the command was wrong. 130: interrupted. A bug keeps its traceback.
"""

from __future__ import annotations

import os
import re
import sys

from absl import flags

from tf2dist.cluster.heartbeat import TaskLostError
from tf2dist.cluster.rendezvous import RendezvousError
from tf2dist.cluster.spec import ClusterError
from tf2dist.data.errors import DataError
from tf2dist.errors import CheckpointError, ShardError, TrainingError, UsageError, reason
from tf2dist.runtime import placement

_LOSS_TIMEOUT = 0.5  # seconds; TensorFlow may notice the loss of a task before the session does

WRONG_COMMAND = (UsageError, ClusterError, DataError, flags.Error)
FAILED_JOB = (RendezvousError, TaskLostError, TrainingError, CheckpointError, ShardError, OSError, MemoryError)


def report_failure(program: str, error: BaseException) -> int | None:
    """Tells the job that this process failed, and the user why, in one line.

    Args:
      program: the name that the line begins with.
      error: what ended the trainer.

    Returns:
      The exit status; None for a bug, whose traceback the user needs. `SystemExit` keeps its own.
    """
    if isinstance(error, SystemExit):
        if error.code:
            _fail(program)
        return None
    if isinstance(error, KeyboardInterrupt):
        _fail(program)
        return 130
    if isinstance(error, WRONG_COMMAND):
        _fail(program, _one_line(error))
        return 2
    if isinstance(error, FAILED_JOB):
        _fail(program, _one_line(error))
        return 1
    line = _tensorflow_line(error)
    if line is None:
        return None
    _fail(program, line)
    return 1


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _fail(program: str, line: str = "") -> None:
    from tf2dist.runtime import session

    session.current().fail()
    if line:
        print(f"{program}: {line}", file=sys.stderr, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TensorFlow's threads log at length while they shut down


def _tensorflow_line(error: BaseException) -> str | None:
    """Returns one line for an error that TensorFlow found while running (a server died, a file is damaged), else None.

    The loss of another task explains more than TensorFlow's own message, so it comes first.
    """
    if "tensorflow" not in sys.modules:
        return None
    import tensorflow as tf

    from tf2dist.runtime import session

    if not isinstance(error, Exception) or not isinstance(error, tf.errors.OpError):
        return None
    if misplaced := placement.explain(error):
        return f"{misplaced}; --soft_placement lets TensorFlow choose another device"
    if lost := session.current().wait_for_loss(_LOSS_TIMEOUT):
        return f"{lost} ({type(error).__name__})"
    if silent := _without_heartbeats(error.message or ""):
        return f"{silent} has given no sign of life ({type(error).__name__})"
    return reason(error)


def _without_heartbeats(message: str) -> str:
    """Returns the tasks whose heartbeats TensorFlow itself has missed, as "worker 1"; empty for other messages."""
    tasks = message.partition("(stopped sending heartbeats)")[2]
    return ", ".join(f"{job} {index}" for job, index in re.findall(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)", tasks))
