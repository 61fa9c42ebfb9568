"""The far end of `launch ssh`, on each host: checks that a task could run there, or runs it and ends it.

Standard input brings one line of JSON, the order, and then heartbeats: empty lines, or `end`. When input ends (the
launcher or its ssh was killed), or no heartbeat has come for a while (the network was cut), the agent ends the task and
everything that it has started.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from tf2dist.cluster.spec import Task
from tf2dist.errors import UsageError
from tf2dist.launch import gpu_sharing
from tf2dist.launch.cluster_layout import Layout, PlacedTask
from tf2dist.launch.user_program import python_arguments
from tf2dist.system import linux

HEARTBEAT_INTERVAL = 2.0  # seconds
HEARTBEAT_TIMEOUT = 30.0  # seconds without a heartbeat after which the launcher is lost
LAST_GRACE = 2.0  # seconds from SIGTERM to SIGKILL once the launcher is lost
KILLED = 5.0  # seconds for what was killed to be gone; what waits for a dead file system may never be
_TICK = 0.1
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def main() -> None:
    """Reads the order and carries it out; exits with the task's status, 128 + n for signal n."""
    linux.wait_for_children_oneself()
    line = b""
    while not line.endswith(b"\n"):  # unbuffered: what follows is for poll to see
        more = os.read(0, 1)
        if not more:
            sys.exit("launch: the connection ended before it said what to run")
        line += more
    order = json.loads(line)
    try:
        os.chdir(order["directory"])
    except OSError as error:
        if not order.get("check"):  # which says it for all hosts at once
            sys.exit(f"launch: {socket.gethostname()} cannot go to {order['directory']}: {error.strerror}")
    if order.get("check"):
        # On a line of its own, whatever the login shell has printed.
        print(f"\n{order['check']} {json.dumps(check(order))}", flush=True)
        return
    if order["port"]:
        wait_for(order["port"])
    sys.exit(RemoteAgent(order).run())


def check(order: dict[str, Any]) -> dict[str, Any]:
    """Returns what the launcher wants to know of this host.

    Returns:
      `problem`: what keeps a task from running here, empty if nothing does; `versions`: of packages; `gpus`: the fields
      of a `GpuSharing` for the tasks of this host, None if there is a problem.
    """
    from tf2dist.cluster import rendezvous

    problem, sharing = _problem(order), None
    if not problem:
        try:
            sharing = vars(_share_gpus(order["gpus"], {**os.environ, **order["env"]}))
        except UsageError as error:
            problem = str(error)
    return {"problem": problem, "versions": rendezvous.versions(), "gpus": sharing}


def _share_gpus(order: dict[str, Any], environ: dict[str, str]) -> gpu_sharing.GpuSharing:
    """Divides the GPUs of this host among the tasks that are to run here."""
    placed = tuple(PlacedTask(Task(job, index), host) for job, index, host in order["tasks"])
    options = {name: order[name] for name in ("host", "each", "memory_mib")}
    return gpu_sharing.share_gpus(Layout(placed), environ, **options)


def _problem(order: dict[str, Any]) -> str:
    if not os.path.isdir(order["directory"]):
        return f"there is no directory {order['directory']}; name one that is on each host with --directory"
    if not os.access(order["directory"], os.X_OK):
        return f"the directory {order['directory']} may not be entered; name one that may with --directory"
    try:
        python_arguments(order["program"])
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
    """Waits until the task whose place this one takes has been ended by its own agent and has freed the port."""
    deadline = time.monotonic() + HEARTBEAT_TIMEOUT + 5 * LAST_GRACE
    if _taken(port):
        print(f"waits for port {port}, which is still in use", file=sys.stderr, flush=True)
    while _taken(port) and time.monotonic() < deadline:  # after that the task itself says what is wrong
        if select.select([0], [], [], _TICK)[0]:
            words = os.read(0, 4096)
            if not words or b"end" in words:
                sys.exit(128 + signal.SIGTERM)


def _with_this_library(environ: dict[str, str]) -> dict[str, str]:
    """The environment of a task that finds this tf2dist where no other is installed, as in a clone on every host.

    Its directory comes after all that the user names in PYTHONPATH.
    """
    if importlib.machinery.PathFinder.find_spec("tf2dist", [path for path in sys.path if path != _ROOT]):
        return environ
    return environ | {"PYTHONPATH": os.pathsep.join(filter(None, [environ.get("PYTHONPATH"), _ROOT]))}


class RemoteAgent:
    """Runs one task, and ends it when the connection to the launcher is lost."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._grace: float = order["grace"]
        self._last_heartbeat = time.monotonic()
        self._deadline: float | None = None  # when what is left is killed; None while the task is to run
        linux.adopt_orphans()
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, lambda signum, frame: self._end(self._grace))
        me = os.getpid()
        self._child = subprocess.Popen(
            [sys.executable, *python_arguments(order["program"])],
            env=_with_this_library({**os.environ, **order["env"]}),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: linux.die_with_parent(me, signal.SIGKILL),
        )

    def run(self) -> int:
        """Waits until the task and all that it has started are gone; returns the exit status."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        pidfd = os.pidfd_open(self._child.pid)
        poll.register(pidfd, select.POLLIN)
        while self._child.poll() is None:
            for fd, _ in poll.poll(1000 * (_TICK if self._deadline else HEARTBEAT_INTERVAL)):
                if fd == 0:
                    self._on_input(poll)
            now = time.monotonic()
            if now - self._last_heartbeat > HEARTBEAT_TIMEOUT:
                self._end(LAST_GRACE)
            if self._deadline and now > self._deadline:
                linux.kill([self._child.pid, *linux.descendants(os.getpid())], signal.SIGKILL)
                if now > self._deadline + KILLED:
                    return 128 + signal.SIGKILL
        self._end_descendants()
        status = self._child.returncode
        # ssh says 255 when it has lost the connection, so a task cannot.
        return 128 - status if status < 0 else min(status, 254)

    def _on_input(self, poll: select.poll) -> None:
        """Reads heartbeats and `end`."""
        try:
            words = os.read(0, 4096)
        except OSError:
            words = b""
        self._last_heartbeat = time.monotonic()
        if not words:
            poll.unregister(0)
            self._end(LAST_GRACE)
        elif b"end" in words:
            self._end(self._grace)

    def _end(self, grace: float) -> None:
        """Asks the task to end, and kills it after so many seconds; the earliest deadline holds.

        What it has started is ended after it: it may need that to save.
        """
        deadline = time.monotonic() + grace
        if self._deadline is None:
            linux.kill([self._child.pid], signal.SIGTERM)
        self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)

    def _end_descendants(self) -> None:
        """Ends what the task has left behind."""
        deadline = time.monotonic() + LAST_GRACE
        linux.kill(linux.descendants(os.getpid()), signal.SIGTERM)
        while linux.has_children():
            if time.monotonic() > deadline + KILLED:
                break
            if time.monotonic() > deadline:
                linux.kill(linux.descendants(os.getpid()), signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.02)
