"""Which of this machine's TensorFlow processes other machines can reach (Linux). Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

_LISTEN = "0A"  # the state of a socket in /proc/net/tcp
_TENSORFLOW = re.compile(r"libtensorflow_(?:cc|framework)\.so")


@dataclass(frozen=True)
class Listener:
    """A process that has loaded TensorFlow and listens at a port for everybody."""

    pid: int
    name: str
    port: int


def open_to_others() -> list[Listener]:
    """The TensorFlow processes, as far as this user may look, that listen on every interface of this network."""
    sockets = _open_sockets()
    found: list[Listener] = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()) if sockets else ():
        with contextlib.suppress(OSError):
            ports = {sockets[inode] for inode in _sockets_of(pid) if inode in sockets}
            if ports and _has_tensorflow(pid):
                with open(f"/proc/{pid}/comm") as file:
                    name = file.read().strip()
                found += [Listener(pid, name, port) for port in sorted(ports)]
    return found


def _open_sockets() -> dict[str, int]:
    """Ports by the inodes of sockets that listen on an address that is not a loopback one."""
    sockets: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as file:
            for line in file.readlines()[1:]:
                _, local, _, state, *rest = line.split()
                address, _, port = local.partition(":")
                if state == _LISTEN and not _is_loopback(address):
                    sockets[rest[5]] = int(port, 16)
    return sockets


def _is_loopback(address: str) -> bool:
    """Whether an address as /proc writes it, in words of the machine's byte order (little), is 127.x.x.x or ::1."""
    address = address.removeprefix("0000000000000000FFFF0000")  # one of version 4 in words of version 6
    return address == "00000000000000000000000001000000" or (len(address) == 8 and address.endswith("7F"))


def _sockets_of(pid: int) -> list[str]:
    links: list[str] = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return [link[len("socket:[") : -1] for link in links if link.startswith("socket:[")]


def _has_tensorflow(pid: int) -> bool:
    with open(f"/proc/{pid}/maps") as file:
        return any(_TENSORFLOW.search(line) for line in file)
