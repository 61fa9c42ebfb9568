"""How a trainer that fails ends: which exit status, and which one line on standard error.

0: done. 1: the job failed. 2: the command was wrong. 75: it was asked to stop, and has saved. 130: interrupted. 141:
nobody reads the output. A bug keeps its traceback.
"""

from __future__ import annotations

import os
import sys

from absl import flags

from tf2dist.errors import Preempted, ShardError, reason
from tf2dist.system import standard_output

_WRONG_COMMAND = (flags.Error,)
_FAILED_JOB = (ShardError, OSError, MemoryError)


def report_failure(program: str, error: BaseException) -> int | None:
    """Tells the job that this process failed, and the user why, in one line.

    Args:
      program: the name that the line begins with.
      error: what ended the trainer.

    Returns:
      The exit status; None for a bug, whose traceback the user needs. `SystemExit` keeps its own.
    """
    if isinstance(error, SystemExit):
        if error.code and not isinstance(error, Preempted):
            _fail(program)
        return None
    if isinstance(error, KeyboardInterrupt):
        _fail(program)
        return 130
    if isinstance(error, BrokenPipeError) and standard_output.is_unread():
        standard_output.discard()
        _fail(program)
        return standard_output.UNREAD
    explained = _explain(error)
    if explained is None:
        return None
    status, line = explained
    _fail(program, line)
    return status


def _explain(error: BaseException) -> tuple[int, str] | None:
    """As `Session.explain`, also for errors that can only be a trainer's user's: a full disk, a wrong device."""
    from tf2dist.runtime import error_explanation, placement_log, session

    if isinstance(error, _WRONG_COMMAND):
        return 2, error_explanation.one_line(error)
    if isinstance(error, _FAILED_JOB):
        return 1, error_explanation.one_line(error)
    if not isinstance(error, Exception) or not error_explanation.is_tensorflow_error(error):
        return session.current().explain(error)
    if misplaced := placement_log.explain(error):
        return 1, f"{misplaced}; --soft_placement lets TensorFlow choose another device"
    return session.current().explain(error) or (1, reason(error))


def _fail(program: str, line: str = "") -> None:
    from tf2dist.runtime import session

    session.current().fail()
    if line:
        print(f"{program}: {line}", file=sys.stderr, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TensorFlow's threads log at length while they shut down
