"""Errors of the user or of the job, which are reported in one line without a traceback. Imports no TensorFlow."""

import re

_HEADINGS = ("Graph execution error", "Detected at node", "File ", "<stack", "Additional GRPC", "2 root error")


class UsageError(ValueError):
    """A command or call that cannot be right; the message is one line: what, what was found, what would be right."""

    ag_pass_through = True  # AutoGraph raises it as it is, and not as an error of its own that is no ValueError


class TrainingError(ValueError):
    """A training that cannot go on: the loss is NaN, say. The message is one line, with what to do."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be restored (of another model, unreadable) or written. The message is one line."""


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


def reason(error: Exception) -> str:
    """Returns an exception's type and message in one line; one of TensorFlow's without nodes and source lines."""
    text = without_nodes(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("in user code"):  # a function that was being traced: its lines, then the error
        return lines[-1]
    said = [line for line in lines if not line.startswith(_HEADINGS)]
    said = re.sub(r"^\(0\) [A-Z_]+:\s*", "", (said or lines or ["no message"])[0])  # the first of several causes
    return f"{type(error).__name__}: {said}"
