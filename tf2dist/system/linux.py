"""Functions of Linux that Python lacks: prctl, process trees and start times from /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any, NoReturn

if sys.platform != "linux":
    raise ImportError(f"tf2dist needs Linux, and this is {sys.platform}")

# Seconds in which another signal that asks a process to end is the same request. A platform that signals all processes
# of a service, and a launcher among them that passes it on, send SIGTERM twice; a session that is closed sends SIGTERM
# and SIGHUP.
SAME_REQUEST = 1.0
CLONE_NEWNET = 0x40000000  # of unshare(2) and setns(2)
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_DELIVERY = 1.0  # seconds in which the kernel delivers a signal
_MANY_FILES = 1 << 16  # some systems have no other limit than memory, and what is started would inherit it
_usual_files: int | None = None  # the limit of open files, if it was raised


def die_with_parent(parent: int, signum: int) -> None:
    """Has the kernel send this process `signum` when its parent process, whose pid is `parent`, ends."""
    call("prctl", _PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above, so nothing will be sent any more
        os.kill(os.getpid(), signum)


def adopt_orphans() -> None:
    """Makes this process the new parent of every descendant whose own parent ends, in place of init."""
    call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def open_closed_streams() -> None:
    """Opens /dev/null in place of the standard streams that the caller has closed, which would become our pipes."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False))


def wait_for_children_oneself() -> None:
    """Undoes SIGCHLD=SIG_IGN, which is inherited: the kernel would reap this process's children, and with them their
    exit statuses would be gone. To be called in the main thread."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def has_children() -> bool:
    """Has this process any child, zombies included?

    Of a process that adopts orphans this also says whether it has descendants, which `descendants` cannot: the kernel
    answers at once, while a walk through /proc overlooks what is forked, and whose parent ends, during the walk.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def descendants(pid: int) -> list[int]:
    """Returns the pids of the living children of `pid`, of their children, and so on, without zombies.

    What is forked while it looks may be missing.
    """
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for found in _pids():
        with contextlib.suppress(OSError), open(f"/proc/{found}/stat", "rb") as file:
            # The name in parentheses may itself hold spaces and parentheses.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            children.setdefault(int(parent), []).append(found)
            if state in b"ZX":
                zombies.add(found)
    living: list[int] = []
    ahead = [pid]
    while ahead:
        below = children.get(ahead.pop(), [])
        ahead += below
        living += [found for found in below if found not in zombies]
    return living


def is_stopped(pid: int) -> bool:
    """Returns whether a process stands still, as by SIGSTOP."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"Tt"
    except OSError:
        return False


def started_with(name: str, value: str) -> list[int]:
    """Returns the pids of processes whose environment held name=value when their program was started."""
    wanted = f"{name}={value}".encode()
    found: list[int] = []
    for pid in _pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(pid)
    return found


def kill(pids: Iterable[int], signum: int) -> None:
    """Sends a signal to processes that may already be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def end_by(signum: int) -> NoReturn:
    """Ends this process as a signal that it does not handle; for any thread, whatever the main thread is at.

    Process 1 of a container, which no signal ends that it does not handle, exits with 128 + the number.
    """
    if os.getpid() != 1:
        _LIBC.signal(int(signum), None)  # SIG_DFL; Python's own function is for the main thread
        os.kill(os.getpid(), signum)
        time.sleep(_DELIVERY)
    os._exit(128 + signum)


def allow_many_files() -> None:
    """Lets this process open as many files as the system allows it to ask for, where its usual limit is lower."""
    global _usual_files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MANY_FILES if hard == resource.RLIM_INFINITY else min(_MANY_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        _usual_files = soft
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def usual_files() -> int:
    """Returns how many files this process might open before `allow_many_files`; -1 without a limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _usual_files is None else _usual_files


def limit_files(number: int) -> None:
    """Lets this process open so many files, what `usual_files` says where it was started.

    Programs rely on a low limit: those that call select(), and those that close every file that there could be.
    """
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def flush() -> None:
    """Flushes the buffers of Python and C for stdout and stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    _LIBC.fflush(None)


def began() -> float:
    """Returns when this process was started, in seconds since the epoch, to a hundredth of a second."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def call(function: str, *arguments: Any) -> None:
    """Calls a function of the C library that returns 0 where it does what it is asked to.

    Raises:
      OSError: it does not.
    """
    if getattr(_LIBC, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
