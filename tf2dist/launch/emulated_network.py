"""A network of a job's own in which each task is a host, whose link can be cut, or be as slow as a real one.

Each task has a network namespace with one interface, `eth0`, whose other end (veth(4)) is a port of a bridge in the
fork server's own namespace (see `network_namespace`). Nothing of it has a name outside, and all of it goes with the
fork server: the kernel removes a namespace that no process is in. The commands `ip` and `tc` of iproute2 make it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence

from tf2dist.launch import network_namespace
from tf2dist.system import linux

_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAP_NET_ADMIN = 12
_CAPABILITY_VERSION = 0x20080522
_BRIDGE = "tf2dist"
_TIMEOUT = 20.0  # seconds for one command
MOST_HOSTS = 1000  # a bridge has 1,023 ports
_GONE = ("Cannot find device", "No such device")  # before `ip` has looked for it, and after
_WORD = re.compile(r"[\w.%:/+-]{1,64}", re.ASCII)
_MOST_WORDS = 64


def address(number: int) -> str:
    """The address of host `number`, from 0 to `MOST_HOSTS` - 1."""
    return f"10.77.{(number + 1) >> 8}.{(number + 1) & 255}"


class Switch:
    """The hosts of a job, and what connects them. In a process that `network_namespace.enter_new` has moved.

    Args:
      link: a queueing discipline as tc(8) takes it, of what goes into each link at both of its ends; empty for none.

    Raises:
      OSError: the system does not allow it, or has no such discipline.
    """

    def __init__(self, link: str = "") -> None:
        self._link = link.split()
        self._ports: dict[str, str] = {}  # names of interfaces by addresses of hosts
        self._made = 0
        self._fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _ip(f"link add {_BRIDGE} type bridge", f"link set {_BRIDGE} up")

    def enter_new_host(self, at: str) -> None:
        """Moves this thread to a new host with this address; what it forks is on it. `leave_host` moves it back.

        Raises:
          OSError: the system does not allow it.
        """
        if at in self._ports:  # the kernel may yet send what the task before has left, and hold its interface for that
            self._on_switch(f"link delete {self._ports[at]}", may_be_gone=True)
        linux.call("unshare", linux.CLONE_NEWNET)
        self._made += 1
        port = self._ports[at] = f"port{self._made}"
        # A host that takes another's place has its hardware address, too, so that nobody has to forget the old one.
        hardware = ":".join(f"{byte:02x}" for byte in (2, 0, *map(int, at.split("."))))
        self._on_switch(
            f"link add {port} type veth peer name eth0 address {hardware} netns {os.getpid()}",
            f"link set {port} master {_BRIDGE} up",
        )
        _ip("link set lo up", f"address add {at}/16 dev eth0", "link set eth0 up")
        if self._link:
            _run(["tc", "qdisc", "add", "dev", "eth0", "root", *self._link])
            _run(["tc", "qdisc", "add", "dev", port, "root", *self._link], self._fd)

    def leave_host(self) -> None:
        """Moves this thread back."""
        linux.call("setns", self._fd, linux.CLONE_NEWNET)

    def cut(self, at: str) -> None:
        """Lets nothing through to a host and from it any more, without a word to anybody."""
        self._set_master(at, "nomaster")

    def restore(self, at: str) -> None:
        """Undoes `cut`."""
        self._set_master(at, f"master {_BRIDGE}")

    def close(self) -> None:
        """Forgets the switch, in a process that is on a host."""
        os.close(self._fd)

    def _set_master(self, at: str, master: str) -> None:
        self._on_switch(f"link set {self._ports[at]} {master}", may_be_gone=True)  # its processes may have ended

    def _on_switch(self, *commands: str, may_be_gone: bool = False) -> None:
        try:
            _ip(*commands, namespace=self._fd)
        except OSError as error:
            if not may_be_gone or not any(said in str(error) for said in _GONE):
                raise


def check_link(link: str) -> str:
    """Returns what is wrong with a queueing discipline as the user has written it; empty if nothing is known to be."""
    words = link.split()
    if not words or len(words) > _MOST_WORDS or not all(_WORD.fullmatch(word) for word in words):
        return f"{link!r} is no queueing discipline of tc(8); write, for example, 'netem delay 1ms rate 1gbit'"
    return ""


def refusal(link: str = "") -> str:
    """Returns why there can be no such network here; empty if there can. Tries it in a child."""
    if missing := [name for name in ("ip", "tc") if (name == "ip" or link) and not _where(name)]:
        return f"{missing[0]} (iproute2) is not installed"

    def attempt() -> None:
        network_namespace.enter_new()
        Switch(link).enter_new_host(address(0))

    return network_namespace.refusal(attempt)


def _where(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")  # where users often do not look


def _ip(*commands: str, namespace: int | None = None) -> None:
    """Has ip(8) carry out several commands, up to the first that fails; see `_run`."""
    _run(["ip", "-batch", "-"], namespace, "\n".join(commands))


def _run(command: Sequence[str], namespace: int | None = None, given: str = "") -> None:
    """Runs a command in a network namespace, given as a file descriptor; in this thread's if none is.

    Args:
      given: its standard input.

    Raises:
      OSError: it has failed.
    """

    def prepare() -> None:  # in the child
        _keep_net_admin()
        if namespace is not None:
            linux.call("setns", namespace, linux.CLONE_NEWNET)

    # Who signals all processes of a job at once asks it to save, and would end the command, and the job with it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        done = subprocess.run(
            [_where(command[0]) or command[0], *command[1:]],
            input=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
            preexec_fn=prepare, timeout=_TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"{' '.join(command)} has not ended in {_TIMEOUT:g} s") from None
    except subprocess.SubprocessError as error:  # in `prepare`
        raise OSError(errno.EPERM, f"{' '.join(command)}: {error}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise OSError(errno.EPERM, f"{'; '.join(given.splitlines()) or ' '.join(command)}: {said}")


def _keep_net_admin() -> None:
    """Lets the command that is executed next change the network: in a user namespace it else has no such right."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable ones, of numbers up to 31 and from 32 on
    linux.call("capget", header, data)
    data[2] |= data[1] & (1 << _CAP_NET_ADMIN)
    linux.call("capset", header, data)
    with contextlib.suppress(OSError):  # root without that right in a container, which the command then says
        linux.call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_NET_ADMIN, 0, 0)
