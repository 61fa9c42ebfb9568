"""The far end of `launch ssh`: looks whether a task could run on this host, or runs it and ends it.

Standard input brings one line of JSON, what to do, and then a line now and then as a sign of life, or `end`. When
input ends (the launcher or its ssh was killed), or nothing has come for a while (the network was cut, which nobody
tells), the task and everything that it has started are ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

from launch import UsageError, linux
from launch.program import as_python_runs

SIGN = 2.0  # seconds between two signs of life
SILENCE = 30.0  # seconds without one after which the launcher is lost
_LAST_GRACE = 2.0  # seconds from SIGTERM to SIGKILL when nobody waits any more
_TICK = 0.1


def main() -> None:
    """Run by `launch.remote` and `launch.ssh`; ends with the task's status, 128 + n for signal n."""
    line = b""
    while not line.endswith(b"\n"):  # unbuffered: what follows is for poll to see
        more = os.read(0, 1)
        if not more:
            sys.exit("launch: the connection ended before it said what to run")
        line += more
    order = json.loads(line)
    with contextlib.suppress(OSError):
        os.chdir(order["directory"])
    if order.get("look"):
        # On a line of its own, whatever the login shell has printed.
        print(f"\n{order['look']} {json.dumps(look(order))}", flush=True)
        return
    if order["port"]:
        wait_for(order["port"])
    sys.exit(Keeper(order).keep())


def look(order: dict) -> dict:
    """What keeps a task from running here, empty if nothing does, and the versions that it would run with."""
    from tf2dist import preflight

    return {"problem": _problem(order), "versions": preflight.versions()}


def _problem(order: dict) -> str:
    if not os.path.isdir(order["directory"]):
        return f"there is no directory {order['directory']}; name one that is on each host with --directory"
    try:
        as_python_runs(order["program"])
    except UsageError as error:
        return str(error)
    for task, port in order["ports"].items():
        if why := _taken(port):
            return f"port {port} of {task} cannot be used: {why}; see --port"
    return ""


def _taken(port: int) -> str:
    """Why a task cannot listen at the port; empty if it can."""
    try:
        # As TensorFlow will listen; a port of a connection that ended a moment ago is free.
        socket.create_server(("", port), reuse_port=False).close()
    except OSError as error:
        return os.strerror(error.errno or 0).lower()  # Python's own words add how it tried
    return ""


def wait_for(port: int) -> None:
    """Waits while a task that has lost its launcher, and whose place this one takes, is being ended by its keeper."""
    deadline = time.monotonic() + SILENCE + 5 * _LAST_GRACE
    if _taken(port):
        print(f"waits for port {port}, which is still in use", file=sys.stderr, flush=True)
    while _taken(port) and time.monotonic() < deadline:  # after that the task itself says what is wrong
        if select.select([0], [], [], _TICK)[0]:
            words = os.read(0, 4096)
            if not words or b"end" in words:
                sys.exit(128 + signal.SIGTERM)


class Keeper:
    """Runs one task and watches over the connection."""

    def __init__(self, order: dict):
        self.grace: float = order["grace"]
        self.heard = time.monotonic()
        self.deadline: float | None = None  # when what is left is killed; None while the task is to run
        linux.adopt_orphans()
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, lambda *_: self.end(self.grace))
        me = os.getpid()
        self.child = subprocess.Popen(
            [sys.executable, *as_python_runs(order["program"])],
            env={**os.environ, **order["env"]},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: linux.die_with_parent(me, signal.SIGKILL),
        )

    def keep(self) -> int:
        """Waits until the task and all that it has started are gone; returns the exit status."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        pidfd = os.pidfd_open(self.child.pid)
        poll.register(pidfd, select.POLLIN)
        while self.child.poll() is None:
            for fd, _ in poll.poll(1000 * (_TICK if self.deadline else SIGN)):
                if fd == 0:
                    self.hear(poll)
            now = time.monotonic()
            if now - self.heard > SILENCE:
                self.end(_LAST_GRACE)
            if self.deadline and now > self.deadline:
                linux.kill([self.child.pid, *linux.descendants(os.getpid())], signal.SIGKILL)
        self.sweep()
        status = self.child.returncode
        # ssh says 255 when it has lost the connection, so a task cannot.
        return 128 - status if status < 0 else min(status, 254)

    def hear(self, poll: select.poll) -> None:
        """Takes what the launcher says."""
        try:
            words = os.read(0, 4096)
        except OSError:
            words = b""
        self.heard = time.monotonic()
        if not words:
            poll.unregister(0)
            self.end(_LAST_GRACE)
        elif b"end" in words:
            self.end(self.grace)

    def end(self, grace: float) -> None:
        """Asks the task to end, and kills it after so many seconds; the earliest deadline holds."""
        deadline = time.monotonic() + grace
        if self.deadline is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGTERM)
        self.deadline = deadline if self.deadline is None else min(deadline, self.deadline)

    def sweep(self) -> None:
        """Ends what the task has left behind."""
        deadline = time.monotonic() + _LAST_GRACE
        linux.kill(linux.descendants(os.getpid()), signal.SIGTERM)
        while left := linux.descendants(os.getpid()):
            if time.monotonic() > deadline:
                linux.kill(left, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.02)
