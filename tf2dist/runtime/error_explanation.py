"""The exit status and the one line that explain an error to a user, where no traceback is needed."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from tf2dist.cluster.heartbeat import TaskLostError
from tf2dist.cluster.loss_policy import status_after_loss
from tf2dist.cluster.rendezvous import RendezvousError
from tf2dist.errors import CheckpointError, TrainingError, UsageError

_FAILED_JOB = (RendezvousError, TaskLostError, TrainingError, CheckpointError)
_OF_THE_PROGRAM = (
    "AlreadyExistsError", "DataLossError", "InvalidArgumentError", "OutOfRangeError", "PermissionDeniedError",
    "ResourceExhaustedError", "UnimplementedError",
)  # fmt: skip
_OF_FILES_TOO = ("FailedPreconditionError", "NotFoundError")  # and of what a task has held that was lost
_SERVICE = "RPC: /tensorflow.CoordinationService/"  # in the error of a call to it that was not answered
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
_CONNECTION = re.compile(r"remote target /job:(\w+)/(?:replica:\d+/)?task:(\d+)")
_OF_CONNECTIONS = (  # anything else the task has answered, for a reason of its own
    "Connection reset", "Connection timed out", "Socket closed", "Broken pipe", "failed to connect",
    "No route to host", "unreachable", "keepalive", "GOAWAY",
)  # fmt: skip
_LOSS_TIMEOUT = 0.5  # seconds; TensorFlow may notice the loss of a task before the session does


def explain(
    error: BaseException, wait_for_loss: Callable[[float], str], leader: str = "the first peer"
) -> tuple[int, str] | None:
    """Returns the exit status of the process that an error ends, and one line for the user.

    The status is 2 for a wrong command or call, 1 for a job that failed, and `status_after_loss` if that has happened
    elsewhere. None for any other error, and for one that
    was caused by another: a traceback says more.

    Args:
      error: what ends the process.
      wait_for_loss: returns which other task was lost, waiting so many seconds for that; the line names it, since that
        explains more than what TensorFlow says of it.
      leader: what the first peer is called, in which TensorFlow's coordination service runs.
    """
    if isinstance(error, (UsageError, *_FAILED_JOB)) and error.__cause__ is None:
        elsewhere = status_after_loss() if isinstance(error, TaskLostError) else 1
        return 2 if isinstance(error, UsageError) else elsewhere, one_line(error)
    if not is_tensorflow_error(error) or _is_of_the_program(error):
        return None
    lost = wait_for_loss(_LOSS_TIMEOUT)
    if lost and (type(error).__name__ not in _OF_FILES_TOO or _names(str(error), lost)):
        return status_after_loss(), f"{lost} ({type(error).__name__})"
    if silent := _without_heartbeats(str(error)):
        return status_after_loss(), f"{silent} has given no sign of life ({type(error).__name__})"
    if _SERVICE in str(error):
        return status_after_loss(), f"{leader} has not answered in time ({type(error).__name__})"
    said, found = " ".join(str(error).partition("\n")[0].split()), _CONNECTION.search(str(error))
    if type(error).__name__ == "UnavailableError" and found and any(part in said for part in _OF_CONNECTIONS):
        return status_after_loss(), f"the connection to {found[1]} {found[2]} was lost: {said}"
    return None


def one_line(error: BaseException) -> str:
    """Returns an error's message in one line; its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def is_tensorflow_error(error: BaseException) -> bool:
    """Whether this is what TensorFlow found while it ran: a server died, a file is damaged."""
    if "tensorflow" not in sys.modules:
        return False
    import tensorflow as tf

    return isinstance(error, tf.errors.OpError)


def _is_of_the_program(error: BaseException) -> bool:
    """Whether this TensorFlow error is one that no lost task explains: of wrong values, say.

    A task that was started again in the place of a lost one says InvalidArgument too: it does not know the context.
    """
    return type(error).__name__ in _OF_THE_PROGRAM and "context_id" not in str(error)


def _names(message: str, lost: str) -> bool:
    """Whether an error's message names the task that was lost; `lost` begins as "ps 0 at ..."."""
    return tuple(lost.split()[:2]) in _TASK.findall(message)


def _without_heartbeats(message: str) -> str:
    """Returns the tasks whose heartbeats TensorFlow itself has missed, as "worker 1"; empty for other messages."""
    tasks = message.partition("(stopped sending heartbeats)")[2]
    return ", ".join(f"{job} {index}" for job, index in _TASK.findall(tasks))
