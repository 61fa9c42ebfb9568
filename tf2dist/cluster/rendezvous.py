"""Rendezvous: the tasks of a job find each other, and compare their clusters and versions, before TensorFlow starts.

The leader (a coordinator, or the first peer) connects to every other task at the address where that task's TensorFlow
server will listen, and sends a greeting: one line of JSON. The two compare what they were started with. When all agree
the leader sends `go`, each task gives its port to TensorFlow, and the connection stays open as a `TaskConnection`.
Every wait has a time limit, and its message names the missing task. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import queue
import socket
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from typing import cast

from tf2dist.cluster.heartbeat import TaskConnection, sending_heartbeats, start_heartbeats
from tf2dist.cluster.reachability import connect
from tf2dist.cluster.spec import Cluster, ClusterError, Task, one_line
from tf2dist.system import environment_variables

START_TIMEOUT = 120.0  # seconds that a task waits for the others
_ANSWER_TIMEOUT = 10.0  # seconds for the answer to a greeting, on a connection that stands
_REPLACEMENT_TIMEOUT = 5.0  # seconds for one attempt to reach the replacement of a lost task
_MAX_MESSAGE = 1 << 20  # bytes of a greeting
_LEADER_FIRST = 5.0  # seconds that a task waits longer for a leader that is there, and can say who is missing
_LAST_CALL = 5.0  # seconds that a job which has enough workers waits for the others
_QUIET = 15.0  # seconds before a waiting task logs for whom it waits, and between two such messages

_log = logging.getLogger("tf2dist")

_Caller = tuple[socket.socket, str, dict[str, object]]  # its connection, host and greeting


def start_timeout() -> float:
    """Returns the seconds that a task waits for the others: TF2DIST_START_TIMEOUT, or the default.

    Raises:
      ClusterError: the variable holds something else.
    """
    try:
        return environment_variables.seconds(environment_variables.START_TIMEOUT, os.environ, START_TIMEOUT)
    except ValueError as error:
        raise ClusterError(str(error)) from None


class RendezvousError(RuntimeError):
    """A task is missing, does not answer, or was started differently; the message names it."""


class MismatchError(RendezvousError):
    """A task answers, but was started with another cluster or other versions."""


def _greeting(cluster: Cluster, to: Task) -> dict[str, object]:
    return {
        "tf2dist": 1,
        "from": str(cluster.task),
        "to": str(to),
        "job": cluster.job_id,
        "cluster": cluster.described,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Returns the versions that must be the same in all tasks: package name to version, "none" if not installed."""
    found: dict[str, str] = {}
    for package in ("tensorflow", "keras"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def wait_for_followers(cluster: Cluster, others: list[Task], limit: float = START_TIMEOUT) -> list[TaskConnection]:
    """Connects to every one of `others` and tells them to start, once all are there.

    First the leader connects to its own address. TensorFlow does so too, in every peer and server, and where nothing
    answers it waits in a call that neither a timeout nor a signal ends.

    Returns:
      The open connections, in the order of `others`.

    Raises:
      RendezvousError: names the first task that is missing after `limit` seconds, or was started differently; or this
        task's own address does not lead to it.
      ClusterError: the port is in use.
    """
    deadline = time.monotonic() + limit
    connections: list[TaskConnection] = []
    with sending_heartbeats(connections):
        if cluster.task not in others:  # else its server is a process of its own, which listens there already
            _check_own_address(cluster, deadline, limit)
        _meet(cluster, others, connections, deadline, limit)
    for connection in connections:
        connection.send("go")
    return connections


def wait_for_some(
    cluster: Cluster, others: list[Task], fewest_workers: int, limit: float = START_TIMEOUT
) -> tuple[list[TaskConnection], list[Task]]:
    """As `wait_for_followers`, but goes without workers that are missing, if at least `fewest_workers` are there.

    Then it waits a few seconds more for the others. A worker that was started differently is logged, and missing. The
    leader's own worker, where it is one, is always waited for: it could not come later.

    Returns:
      The open connections, and the workers that are missing.

    Raises:
      As `wait_for_followers`, and RendezvousError where fewer workers are there after `limit` seconds.
    """
    deadline = time.monotonic() + limit
    own = [task for task in others if task == cluster.task]
    workers = [task for task in others if task.job == "worker" and task not in own]
    needed: list[TaskConnection] = []
    if not own:
        _check_own_address(cluster, deadline, limit)
    arrivals = _Arrivals(cluster, workers)
    with arrivals, sending_heartbeats(needed):
        _meet(cluster, [task for task in others if task not in workers], needed, deadline, limit)
        arrivals.wait_for(fewest_workers, len(own), deadline, limit)
        _replace_ended(cluster, needed, deadline, limit)
    for connection in [*needed, *arrivals.connections]:
        connection.send("go")
    there = {connection.task for connection in arrivals.connections}
    return [*needed, *arrivals.connections], [task for task in workers if task not in there]


def _meet(
    cluster: Cluster, others: list[Task], connections: list[TaskConnection], deadline: float, limit: float
) -> None:
    """Connects to every one of `others`, and puts them into `connections`."""
    for task in others:
        connections.append(_connect(cluster, task, deadline, limit))
    _replace_ended(cluster, connections, deadline, limit)


def _replace_ended(cluster: Cluster, connections: list[TaskConnection], deadline: float, limit: float) -> None:
    """Connects again to tasks that ended while this one waited for others: they may have been started again."""
    while ended := [i for i, connection in enumerate(connections) if connection.has_ended()]:
        for i in ended:
            connections[i].close()
            connections[i] = _connect(cluster, connections[i].task, deadline, limit)


class _Arrivals:
    """Workers that come in any order, or not at all; a context in which they are waited for.

    Attributes:
      connections: to those that are there, in their own order once it is left.
    """

    def __init__(self, cluster: Cluster, workers: list[Task]) -> None:
        self.connections: list[TaskConnection] = []
        self._cluster, self._workers = cluster, workers
        self._changed = threading.Condition()  # of connections
        self._over = threading.Event()

    def __enter__(self) -> None:
        self._stop_heartbeats = start_heartbeats(self.connections)
        for worker in self._workers:
            threading.Thread(target=self._find, args=(worker,), name="rendezvous", daemon=True).start()

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._over.set()
            self.connections.sort(key=lambda connection: connection.task.index)
        self._stop_heartbeats()

    def _find(self, worker: Task) -> None:
        """Connects to a worker, and again to one that has taken its place, until the context is left."""
        while (connection := wait_for_replacement(self._cluster, worker, self._over)) is not None:
            with self._changed:
                if self._over.is_set():
                    connection.close()
                    return
                self.connections.append(connection)
                self._changed.notify_all()
            while not connection.has_ended():
                if self._over.wait(0.2):
                    return
            with self._changed:
                if self._over.is_set():
                    return
                self.connections.remove(connection)
            connection.close()

    def wait_for(self, fewest: int, others: int, deadline: float, limit: float) -> None:
        """Waits until `fewest` are there, with so many `others` that are, and a few seconds more for all.

        Raises:
          RendezvousError: they are not, by `deadline`; `limit` seconds is what the message says.
        """
        next_log = time.monotonic() + _QUIET
        enough_since = math.inf
        with self._changed:
            while True:
                now, there = time.monotonic(), {c.task for c in self.connections if not c.has_ended()}
                missing = ", ".join(f"{w} at {self._cluster.address(w)}" for w in self._workers if w not in there)
                found = len(there) + others
                if len(there) == len(self._workers) or (found >= fewest and now > enough_since + _LAST_CALL):
                    return
                if found >= fewest:
                    enough_since = min(enough_since, now)
                else:
                    enough_since = math.inf
                    if now > deadline:
                        raise RendezvousError(
                            f"{found} of at least {fewest} workers are there after {limit:g} s, without {missing}"
                        )
                    if now > next_log:
                        _log.warning(
                            "%s waits for at least %s workers; without %s", self._cluster.task, fewest, missing
                        )
                        next_log = now + _QUIET
                self._changed.wait(0.2)


def wait_for_replacement(cluster: Cluster, task: Task, over: threading.Event) -> TaskConnection | None:
    """Waits until a lost task was started again with the same cluster, and returns the connection to it.

    Returns None once `over` is set. A replacement that was started differently is logged once and ignored.
    """
    logged = ""
    while not over.wait(0.2):
        try:
            return _connect(cluster, task, time.monotonic() + _REPLACEMENT_TIMEOUT, _REPLACEMENT_TIMEOUT)
        except MismatchError as error:
            if str(error) != logged:
                _log.warning("tf2dist: %s", error)
            logged = str(error)
            over.wait(_REPLACEMENT_TIMEOUT)
        except RendezvousError:
            pass
    return None


def _connect(cluster: Cluster, task: Task, deadline: float, limit: float) -> TaskConnection:
    """Connects to a task and compares clusters with it, until `deadline`; `limit` seconds is what a message says.

    Raises:
      RendezvousError: the task is missing.
      MismatchError: it was started differently.
    """
    address = cluster.address(task)
    next_log = time.monotonic() + _QUIET
    while True:
        left = max(0.1, deadline - time.monotonic())
        try:
            connection = connect(address, min(5.0, left))
        except OSError as error:
            why = _why_not_reached(error)
        else:
            try:
                connection.settimeout(min(_ANSWER_TIMEOUT, left))
                connection.sendall(json.dumps(_greeting(cluster, task)).encode() + b"\n")
                answer = _read_line(connection, min(_ANSWER_TIMEOUT, left))
                why = "it accepts connections, but does not answer as a task of this job"
            except OSError as error:
                answer, why = None, f"it accepts connections, but does not answer: {error}"
            if answer == {"ok": True}:
                return TaskConnection(connection, task, address)
            connection.close()
            if answer and "error" in answer:
                raise MismatchError(f"{task} at {address} {_printable(answer['error'])}")
        if time.monotonic() > deadline:
            raise RendezvousError(f"{task} at {address} is missing after {limit:g} s: {why}")
        if time.monotonic() > next_log:
            _log.warning("%s waits for %s at %s: %s", cluster.task, task, address, why)
            next_log = time.monotonic() + _QUIET
        time.sleep(0.1)


def _check_own_address(cluster: Cluster, deadline: float, limit: float) -> None:
    """Waits until this task's own address leads to this process; a name may be known a little after the task starts.

    Raises:
      RendezvousError: it does not, by `deadline`; `limit` seconds is what the message says.
      ClusterError: the port is in use.
    """
    address = cluster.address()
    token = os.urandom(16)
    next_log = time.monotonic() + _QUIET
    with _listen(cluster) as listener:
        while True:
            left = max(0.1, deadline - time.monotonic())
            try:
                with connect(address, min(5.0, left)) as connection:
                    connection.sendall(token)
                    if _arrives(listener, token, min(2.0, left)):
                        return
                why = "another host answers there"
            except OSError as error:
                why = _why_not_reached(error)
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"{cluster.task}'s own address {address} does not lead to this process after {limit:g} s: {why}; "
                    "give the task an address of this host, in every process of the job"
                )
            if time.monotonic() > next_log:
                _log.warning("%s cannot be reached at its own address %s: %s", cluster.task, address, why)
                next_log = time.monotonic() + _QUIET
            time.sleep(0.1)


def _arrives(listener: socket.socket, token: bytes, limit: float) -> bool:
    """Does one of those who connect within `limit` seconds send the token?"""
    deadline = time.monotonic() + limit
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(OSError):
            listener.settimeout(left)
            caller, _ = listener.accept()
            with caller:
                caller.settimeout(min(left, 0.5))  # a stranger may send nothing
                if caller.recv(len(token), socket.MSG_WAITALL) == token:
                    return True
    return False


def _why_not_reached(error: OSError) -> str:
    return "no such host" if isinstance(error, socket.gaierror) else (error.strerror or str(error)).lower()


def wait_for_leader(cluster: Cluster, leader: Task, limit: float = START_TIMEOUT) -> TaskConnection:
    """Waits at this task's own address for the leader to connect and to send `go`; returns the connection.

    Raises:
      RendezvousError: the leader did not come within `limit` seconds, or the job cannot start.
      ClusterError: the port is in use.
    """
    where = f"{leader} at {cluster.address(leader)}"
    deadline = time.monotonic() + limit
    next_log = time.monotonic() + _QUIET
    greetings: queue.SimpleQueue[_Caller] = queue.SimpleQueue()
    came = False
    with _listen(cluster) as listener:
        listener.settimeout(0.05)
        while True:
            if time.monotonic() > deadline:
                what = "which came and still waits for others" if came else "which did not come"
                raise RendezvousError(f"{cluster.task} waited {limit:g} s for {where}, {what}")
            if (
                time.monotonic() > next_log and cluster.task != leader
            ):  # else its parent process leads, and logs for whom it waits
                _log.warning("%s waits for %s", cluster.task, where)
                next_log = time.monotonic() + _QUIET
            # A thread for each: a stranger who connects and sends nothing must not keep the leader waiting.
            with contextlib.suppress(OSError):  # nobody has connected; or so many that no file descriptor is left
                caller, (host, *_) = listener.accept()
                arguments = caller, host.removeprefix("::ffff:"), greetings
                try:
                    threading.Thread(target=_receive_greeting, args=arguments, daemon=True).start()
                except RuntimeError:  # no thread is left: so many have connected
                    caller.close()
            while not greetings.empty():
                connection = _answer(cluster, leader, *greetings.get())
                if connection is None:
                    continue
                if _receives_go(connection, deadline + _LEADER_FIRST):
                    return connection
                came = time.monotonic() > deadline


def check_port_free(cluster: Cluster) -> None:
    """Raises a ClusterError when something listens at this task's own port already."""
    _listen(cluster).close()


def _listen(cluster: Cluster) -> socket.socket:
    """Listens at this task's own port, in IPv4 and IPv6; raises a ClusterError if that cannot be."""
    port = cluster.port()
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
        return socket.create_server(("", port), backlog=64)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ClusterError(
                f"port {port} of {cluster.task} ({cluster.address()}) cannot be used: {error.strerror or error}; "
                "give the task another port, in every process of the job"
            ) from None
        raise ClusterError(
            f"port {port} of {cluster.task} ({cluster.address()}) is in use on this host; stop what listens there "
            "or give the task another port, in every process of the job"
        ) from None


def _receive_greeting(connection: socket.socket, host: str, greetings: queue.SimpleQueue[_Caller]) -> None:
    """Puts a caller's greeting into `greetings`; closes the connection if it sends something else, or nothing."""
    greeting = None
    with contextlib.suppress(OSError):
        greeting = _read_line(connection, _ANSWER_TIMEOUT)
    if greeting and greeting.get("tf2dist") == 1:
        greetings.put((connection, host, greeting))
    else:
        connection.close()


def _answer(
    cluster: Cluster, leader: Task, connection: socket.socket, host: str, greeting: dict[str, object]
) -> TaskConnection | None:
    """Answers a greeting; None where clusters or versions differ (the leader reports it), or the caller is gone."""
    reason = _printable(_difference(cluster, greeting))
    try:
        connection.settimeout(_ANSWER_TIMEOUT)
        connection.sendall(json.dumps({"error": reason} if reason else {"ok": True}).encode() + b"\n")
    except OSError:
        connection.close()
        return None
    if reason:
        found = f"{greeting.get('from')} came from {host}, but this task {reason}"
        _log.warning("%s: %s", cluster.task, _printable(found))
        connection.close()
        return None
    return TaskConnection(connection, leader, cluster.address(leader))


def _difference(cluster: Cluster, greeting: dict[str, object]) -> str:
    """Returns what differs between this task and the one that sent the greeting; empty if nothing does."""
    theirs = greeting.get("job")
    if cluster.job_id and theirs and theirs != cluster.job_id:
        return f"belongs to another job: {cluster.job_id}, not {theirs}"
    if greeting.get("to") != str(cluster.task):
        return f"was started as {cluster.task}, and is taken for {greeting.get('to')}"
    if greeting.get("cluster") != cluster.described:
        return f"was started with another cluster: {cluster.described}, not {greeting.get('cluster')}"
    if greeting.get("versions") != versions():
        return f"has other versions: {versions()}, not {greeting.get('versions')}"
    return ""


def _receives_go(connection: TaskConnection, deadline: float) -> bool:
    """Waits for the leader's `go`; False when the leader has gone away, and may come again."""
    try:
        return connection.receive("go", limit=max(0.1, deadline - time.monotonic())) == "go"
    except (ConnectionError, TimeoutError):
        connection.close()
        return False


def _read_line(connection: socket.socket, limit: float) -> dict[str, object] | None:
    """Reads one line with a JSON object, which must be there within `limit` seconds; None if it is something else."""
    deadline = time.monotonic() + limit
    received = bytearray()
    while len(received) < _MAX_MESSAGE and b"\n" not in received[-65536:]:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        more = connection.recv(65536)
        if not more:
            break
        received += more
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    try:
        found: object = json.loads(received)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", found) if isinstance(found, dict) else None


def _printable(text: object, limit: int = 2000) -> str:
    """Makes one printable line of text that came from the network, where a stranger may have sent it."""
    text = one_line(str(text))
    return text if len(text) <= limit else f"{text[:limit]}..."
