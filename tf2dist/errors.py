"""Errors of the user or of the job, which are reported in one line without a traceback. Imports no TensorFlow."""

import functools
import re

_LONGEST = 4000  # characters of a message: what was found may be a whole file
_HEADINGS = ("Graph execution error", "Detected at node", "File ", "<stack", "Additional GRPC", "2 root error")


def printable(text: str) -> str:
    """Returns text from anywhere as one line that any terminal can show; one that is very long without its middle."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


class UsageError(ValueError):
    """A command or call that cannot be right; the message is one line: what, what was found, what would be right."""

    ag_pass_through = True  # AutoGraph raises it as it is, and not as an error of its own that is no ValueError

    def __init__(self, message: str) -> None:
        super().__init__(printable(re.sub(r"\s*[\r\n]\s*", " ", message)))


class TrainingError(ValueError):
    """A training that cannot go on: the loss is NaN, say. The message is one line, with what to do."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be restored (of another model, unreadable) or written. The message is one line."""


START_AGAIN = 75  # the exit status of a job that was asked to stop and has saved (EX_TEMPFAIL): start it again to go on


class Preempted(SystemExit):
    """Ends the program of a job that was asked to stop and has saved, with status 75: "start me again".

    It is no `Exception`, so that what a program does about its errors does not stop it.

    Attributes:
      alone: does it end this process alone, wherever it was? Else all peers of the job end after the same step.
    """

    def __init__(self, *, alone: bool = False) -> None:
        super().__init__(START_AGAIN)
        self.alone = alone

    def __reduce__(self):
        return functools.partial(type(self), alone=self.alone), ()


class ShardError(ValueError):
    """A function that `map_reduce` has called failed on one shard.

    Attributes:
      shard: its number, counted from 0.
      reason: what the function said, in one line.
    """

    def __init__(self, shard: int, reason: str):
        super().__init__(f"shard {shard}: {' '.join(reason.split())}")
        self.shard, self.reason = shard, reason

    def __reduce__(self):
        return type(self), (self.shard, self.reason)


def without_nodes(error: Exception) -> str:
    """Returns an exception's message; one of TensorFlow's without the names of the graph's nodes and operations."""
    return re.sub(r"{{.*?}}|\[\[.*|\[Op:.*", "", str(getattr(error, "message", error)))


def first_line(error: Exception) -> str:
    """Returns the first line of an exception's message; one of TensorFlow's without nodes and operations."""
    return " ".join(without_nodes(error).partition("\n")[0].split())


def reason(error: Exception) -> str:
    """Returns an exception's type and message in one line; one of TensorFlow's without nodes and source lines."""
    text = without_nodes(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("in user code"):  # a function that was being traced: its lines, then the error
        return lines[-1]
    said = [line for line in lines if not line.startswith(_HEADINGS)]
    said = re.sub(r"^\(0\) [A-Z_]+:\s*", "", (said or lines or ["no message"])[0])  # the first of several causes
    return f"{type(error).__name__}: {said}"
