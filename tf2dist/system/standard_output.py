"""Standard output that nobody reads (`| head`), or that cannot show every character."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Sequence

UNREAD = 141  # exit status, as of what SIGPIPE ends


def is_unread() -> bool:
    """Is it a pipe that nobody reads any more?"""
    poll = select.poll()
    poll.register(1, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def discard() -> None:
    """Lets what is still to be printed go nowhere, so that the end of the process does not fail with it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def run(main: Callable[[Sequence[str]], int]) -> int | str | None:
    """Runs a command with this process's arguments; returns its exit status.

    130 when it is interrupted, 141 when nobody reads what it prints. What standard output has no character for is
    printed as a number, as \\u2603: names of files, and what programs say, can be any text.
    """
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore
    try:
        try:
            status: int | str | None = main(sys.argv[1:])
        except SystemExit as ended:  # argparse's, after --help
            status = ended.code
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        if not is_unread():
            raise
        discard()
        return UNREAD
