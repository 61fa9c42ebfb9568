"""The few things of Linux that Python does not offer: prctl, and what /proc knows about processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time

if sys.platform != "linux":
    raise ImportError(f"launch needs Linux, and this is {sys.platform}")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, signum: int) -> None:
    """Has the kernel send this process `signum` when the thread that started it ends; `parent` is its pid."""
    _prctl(_PR_SET_PDEATHSIG, int(signum))
    if os.getppid() != parent:  # it died before the call above, so nothing will be sent any more
        os.kill(os.getpid(), signum)


def adopt_orphans() -> None:
    """Makes this process the new parent of every descendant whose own parent ends, in place of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int) -> list[int]:
    """Pids of the living children of `pid`, of their children, and so on; a zombie is not alive."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for found in _pids():
        with contextlib.suppress(OSError), open(f"/proc/{found}/stat", "rb") as file:
            # The name in parentheses may itself hold spaces and parentheses.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            children.setdefault(int(parent), []).append(found)
            if state in b"ZX":
                zombies.add(found)
    living, ahead = [], [pid]
    while ahead:
        below = children.get(ahead.pop(), [])
        ahead += below
        living += [found for found in below if found not in zombies]
    return living


def started_with(name: str, value: str) -> list[int]:
    """Pids of processes whose environment held name=value when their program was started."""
    wanted = f"{name}={value}".encode()
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(pid)
    return found


def kill(pids, signum: int) -> None:
    """Sends a signal to processes that may already be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def flush() -> None:
    """Writes what Python and C have buffered for stdout and stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


def began() -> float:
    """When this process was started, in seconds since the epoch, to a hundredth of a second."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")
