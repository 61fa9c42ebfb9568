"""`--isolate`: a network of its own for a job on this machine (network_namespaces(7)).

TensorFlow's servers listen on every interface, without a password, and run whatever they are sent. In a network
namespace that has nothing but a loopback interface, only the job's own processes reach them.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
from collections.abc import Callable

from tf2dist.system import linux

_CLONE_NEWUSER = 0x10000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_TRIAL_TIMEOUT = 10.0  # seconds that a trial may take


def enter_new() -> None:
    """Moves this process, which must have only one thread, to a new network with nothing but a loopback interface.

    Raises:
      OSError: the system does not allow it.
    """
    uid, gid = os.getuid(), os.getgid()
    if not _enter_as_root():  # users other than root need a user namespace too
        linux.call("unshare", _CLONE_NEWUSER | linux.CLONE_NEWNET)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        fcntl.ioctl(anything, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def _enter_as_root() -> bool:
    """Moves this process to a new network, if it is root's and has the right to."""
    if os.getuid() != 0:
        return False
    try:
        linux.call("unshare", linux.CLONE_NEWNET)
    except OSError:
        return False
    return True


def refusal(attempt: Callable[[], object] | None = None) -> str:
    """Returns why `attempt`, `enter_new` if not given, would fail here; empty if it would not. Tries it in a child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        why = ""
        try:
            (attempt or enter_new)()
        except OSError as error:
            why = error.strerror or str(error)
        except BaseException as error:
            why = str(error)
        os.write(writer, why.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        # A fork may hang where the program has threads, from a sitecustomize for example.
        answered = select.select([file], [], [], _TRIAL_TIMEOUT)[0]
        if not answered:
            os.kill(pid, signal.SIGKILL)
        why = file.read() if answered else f"a trial took longer than {_TRIAL_TIMEOUT:g} s"
    os.waitpid(pid, 0)
    return why
