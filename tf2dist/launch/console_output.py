"""Passes on what the processes of a job print to the launcher's stdout and stderr: whole lines, without blocking."""

from __future__ import annotations

import errno
import os
import select
from collections import deque

STDOUT, STDERR = 1, 2
LONGEST_LINE = 1 << 20  # bytes; a longer one is cut into several
_LIMIT = 1 << 18  # bytes that may wait to be written before no more is read
_COLOURS = (36, 33, 35, 32, 34, 31)


class OutputQueue:
    """Bytes that wait to be written, in order, to file descriptors that may be slow.

    A write blocks when nobody reads at the other end, and then no signal, no crash and no deadline would be
    noticed. So each write is made when poll says that it has room, and is no longer than what a pipe then takes.
    """

    def __init__(self) -> None:
        self.error: OSError | None = None  # why stdout or stderr cannot be written any more
        self._waiting: deque[tuple[int, bytearray]] = deque()
        self._size = 0
        self._unfinished: object = None  # the source whose last line ended in a carriage return

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Does so much wait that no more should be read? Then the processes wait, as on any slow pipe."""
        return self._size > _LIMIT

    def add(self, fd: int, data: bytes, source: object = None) -> None:
        """Appends whole lines of `source`, or one that ends in a carriage return, which the next will overwrite."""
        if not data or self.error:
            return
        if self._unfinished not in (None, source):
            data = b"\n" + data
        self._unfinished = source if data.endswith(b"\r") else None
        self._size += len(data)
        if self._waiting and self._waiting[-1][0] == fd:
            self._waiting[-1][1].extend(data)
        else:
            self._waiting.append((fd, bytearray(data)))

    def register(self, poll: select.poll) -> None:
        """Registers the descriptors: `poll` returns when there is room to write, or when a reader is gone."""
        for fd in (STDOUT, STDERR):
            poll.register(fd, select.POLLOUT if self._waiting and self._waiting[0][0] == fd else 0)

    def write_some(self, fd: int, events: int) -> None:
        """Writes as much as a pipe takes now; called with what `poll` returned."""
        if events & (select.POLLERR | select.POLLHUP):
            return self.discard(BrokenPipeError(errno.EPIPE, "nobody reads it any more"))
        if not events & select.POLLOUT or not self._waiting or self._waiting[0][0] != fd:
            return None
        data = self._waiting[0][1]
        try:
            written = os.write(fd, data[: select.PIPE_BUF])
        except BlockingIOError:  # someone who shares the descriptor made it non-blocking
            return None
        except OSError as error:
            return self.discard(error)
        del data[:written]
        self._size -= written
        if not data:
            self._waiting.popleft()
        return None

    def discard(self, error: OSError) -> None:
        """Drops what waits, and everything that is added later; `error` says why it cannot be written."""
        self.error = error
        self._waiting.clear()
        self._size = 0


class LineSplitter:
    """Cuts one stream of a process into lines, and puts the name of the process in front of each.

    A progress bar, which overwrites its line again and again, is shown in its last state when the line ends; without
    a prefix there is one process to watch, and its progress goes through as it comes.
    """

    def __init__(self, to: int, prefix: bytes, tail: deque[bytes], key: int = 0) -> None:
        self.to = to
        self.key = key  # of the process
        self.prefix = prefix
        self.tail = tail  # the last lines, shared by both streams of a process
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Takes bytes that were read from the stream; returns those that can be shown now."""
        rest = self._rest
        searched = max(len(rest) - 1, 0)
        rest += data
        end = rest.rfind(b"\n", searched) + 1
        if not self.prefix:
            end = max(end, rest.rfind(b"\r", searched) + 1)
        whole = bytes(rest[:end])
        del rest[:end]
        # What is overwritten later need not be kept; a carriage return at the very end may belong to a line feed.
        overwritten = rest.rfind(b"\r", max(searched - end, 0), max(len(rest) - 1, 0))
        del rest[: overwritten + 1]
        if len(rest) > LONGEST_LINE:
            whole += bytes(rest) + b"\n"
            rest.clear()
        return self._shown(whole)

    def finish(self) -> bytes:
        """Returns what is left at the end of the stream: a last line without a line feed."""
        whole = bytes(self._rest) + b"\n" if self._rest else b""
        self._rest.clear()
        return self._shown(whole)

    def _shown(self, whole: bytes) -> bytes:
        lines = whole.split(b"\n")
        lines.pop()  # nothing, or progress that passes through
        lines = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]
        self.tail.extend(lines)
        return b"".join(self.prefix + line + b"\n" for line in lines) if self.prefix else whole


def prefix(name: str, number: int, to: int) -> bytes:
    """`[name] `, in a colour of its own on a terminal, unless the user does not want colours (no-color.org)."""
    text = f"[{name}]"
    if os.isatty(to) and not os.environ.get("NO_COLOR"):
        text = f"\x1b[{_COLOURS[number % len(_COLOURS)]}m{text}\x1b[0m"
    return f"{text} ".encode()
