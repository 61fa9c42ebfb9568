"""What the launcher prints when a job has failed: the reason, and the last lines of the process that failed first."""

from __future__ import annotations

from collections.abc import Iterable

LAST_LINES = 20  # of the failed process
LAST_LINES_FOLLOW = "; its last lines:"


def failure_report(reason: str, last_lines: Iterable[bytes]) -> bytes:
    """Returns the report as whole lines."""
    lines = [f"launch: {reason}".encode(), *(b"    " + line for line in last_lines)]
    return b"\n".join(lines) + b"\n"
