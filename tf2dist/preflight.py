"""Are all peers there, with the same cluster and versions? Asked before TensorFlow starts; imports none.

The leader (a coordinator, or the first peer) connects to every other task at the address where its TensorFlow
server will listen. The two compare what they were started with; when all agree the leader says `go`, each task gives
its port to TensorFlow, and the connection stays as a `Lifeline`. Whoever waits has a time limit and names whom it
waits for.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import socket
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version

from tf2dist.cluster import Cluster, ClusterError, Task, one_line
from tf2dist.lifeline import Lifeline, kept_alive

LIMIT = 120.0  # seconds that a task waits for the others
_ANSWER = 10.0  # seconds for an answer to a greeting, on a connection that stands
_ONCE = 5.0  # seconds for a try to find a task that was lost
_MOST = 1 << 20  # bytes of a greeting
_TALK = 15.0  # seconds of silence before a waiting task says for whom it waits


def time_limit() -> float:
    """Seconds that a task waits for the others: TF2DIST_START_TIMEOUT, or LIMIT.

    Raises:
      ClusterError: the variable holds something else.
    """
    text = os.environ.get("TF2DIST_START_TIMEOUT", "")
    try:
        seconds = float(text) if text else LIMIT
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ClusterError(f"TF2DIST_START_TIMEOUT is {text!r}; it must be a number of seconds above 0")
    return seconds


class PreflightError(RuntimeError):
    """A task is missing, does not answer, or was started differently; the message names it."""


class Disagreement(PreflightError):
    """A task is there, and was started differently."""


def _greeting(cluster: Cluster, to: Task) -> dict:
    return {
        "tf2dist": 1,
        "from": str(cluster.task),
        "to": str(to),
        "cluster": cluster.spec,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    found = {}
    for package in ("tensorflow", "keras"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def gather(cluster: Cluster, others: list[Task], limit: float = LIMIT) -> list[Lifeline]:
    """Finds every one of `others` and tells them to start.

    Raises:
      PreflightError: the first that is missing after `limit` seconds, or disagrees.
    """
    deadline = time.monotonic() + limit
    lifelines: list[Lifeline] = []
    with kept_alive(lifelines):
        for task in others:
            lifelines.append(_reach(cluster, task, deadline, limit))
        # One that ended while the others were waited for may have been started again.
        while ended := [i for i, line in enumerate(lifelines) if line.ended()]:
            for i in ended:
                lifelines[i].close()
                lifelines[i] = _reach(cluster, lifelines[i].task, deadline, limit)
    for line in lifelines:
        line.say("go")
    return lifelines


def find_again(cluster: Cluster, task: Task, over: threading.Event) -> Lifeline | None:
    """Waits until a task that was lost has been started again, with the same cluster; None once `over` is set."""
    said = ""
    while not over.wait(0.2):
        try:
            return _reach(cluster, task, time.monotonic() + _ONCE, _ONCE)
        except Disagreement as error:
            if str(error) != said:
                print(f"tf2dist: {error}", file=sys.stderr, flush=True)
            said = str(error)
            over.wait(_ONCE)
        except PreflightError:
            pass
    return None


def _reach(cluster: Cluster, task: Task, deadline: float, limit: float) -> Lifeline:
    address = cluster.address(task)
    host, _, port = address.rpartition(":")
    talk = time.monotonic() + _TALK
    while True:
        left = max(0.1, deadline - time.monotonic())
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=min(5.0, left))
        except OSError as error:
            why = "no such host" if isinstance(error, socket.gaierror) else (error.strerror or str(error)).lower()
        else:
            try:
                connection.settimeout(min(_ANSWER, left))
                connection.sendall(json.dumps(_greeting(cluster, task)).encode() + b"\n")
                answer = _read_line(connection, min(_ANSWER, left))
                why = "it accepts connections, but does not answer as a task of this job"
            except OSError as error:
                answer, why = None, f"it accepts connections, but does not answer: {error}"
            if answer == {"ok": True}:
                return Lifeline(connection, task, address)
            connection.close()
            if isinstance(answer, dict) and "error" in answer:
                raise Disagreement(f"{task} at {address} {_repeated(answer['error'])}")
        if time.monotonic() > deadline:
            raise PreflightError(f"{task} at {address} is missing after {limit:g} s: {why}")
        if time.monotonic() > talk:
            print(f"{cluster.task} waits for {task} at {address}: {why}", file=sys.stderr, flush=True)
            talk = time.monotonic() + _TALK
        time.sleep(0.1)


def answer(cluster: Cluster, leader: Task, limit: float = LIMIT) -> Lifeline:
    """Waits at this task's own address for the leader, and for its word to start.

    Raises:
      PreflightError: the leader did not come within `limit` seconds, or the job cannot start.
      ClusterError: the port is in use.
    """
    where = f"{leader} at {cluster.address(leader)}"
    deadline = time.monotonic() + limit
    talk = time.monotonic() + _TALK
    heard: queue.SimpleQueue = queue.SimpleQueue()
    with _listen(cluster) as listener:
        listener.settimeout(0.05)
        while True:
            if time.monotonic() > deadline:
                raise PreflightError(f"{cluster.task} waited {limit:g} s for {where}, which did not come")
            if time.monotonic() > talk and cluster.task != leader:  # else its parent leads, and says for whom it waits
                print(f"{cluster.task} waits for {where}", file=sys.stderr, flush=True)
                talk = time.monotonic() + _TALK
            # Each is listened to by itself: a stranger who says nothing must not keep the leader waiting.
            with contextlib.suppress(OSError):  # nobody has come; or so many that there are no files left
                connection, (host, *_) = listener.accept()
                caller = connection, host.removeprefix("::ffff:")
                threading.Thread(target=_hear_greeting, args=(*caller, heard), daemon=True).start()
            while not heard.empty():
                lifeline = _agree(cluster, leader, *heard.get())
                if lifeline and _told_to_go(lifeline, deadline):
                    return lifeline


def check_port(cluster: Cluster) -> None:
    """Raises a ClusterError when something listens at this task's own port already."""
    _listen(cluster).close()


def _listen(cluster: Cluster) -> socket.socket:
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


def _hear_greeting(connection: socket.socket, host: str, heard: queue.SimpleQueue) -> None:
    """Hands on what a caller says, if that is a greeting; TensorFlow and strangers say something else, or nothing."""
    greeting = None
    with contextlib.suppress(OSError):
        greeting = _read_line(connection, _ANSWER)
    if isinstance(greeting, dict) and greeting.get("tf2dist") == 1:
        heard.put((connection, host, greeting))
    else:
        connection.close()


def _agree(cluster: Cluster, leader: Task, connection: socket.socket, host: str, greeting: dict) -> Lifeline | None:
    """Answers a greeting; None when it disagreed (the leader reports it), or who greeted is gone."""
    reason = _difference(cluster, greeting)
    try:
        connection.settimeout(_ANSWER)
        connection.sendall(json.dumps({"error": reason} if reason else {"ok": True}).encode() + b"\n")
    except OSError:
        connection.close()
        return None
    if reason:
        said = f"{greeting.get('from')} came from {host}, but this task {reason}"
        print(f"{cluster.task}: {_repeated(said)}", file=sys.stderr)
        connection.close()
        return None
    return Lifeline(connection, leader, cluster.address(leader))


def _difference(cluster: Cluster, greeting: dict) -> str:
    """What differs between this task and the one that greets; empty when they agree."""
    if greeting.get("to") != str(cluster.task):
        return f"was started as {cluster.task}, and is taken for {greeting.get('to')}"
    if greeting.get("cluster") != cluster.spec:
        return f"was started with another cluster: {cluster.spec}, not {greeting.get('cluster')}"
    if greeting.get("versions") != versions():
        return f"has other versions: {versions()}, not {greeting.get('versions')}"
    return ""


def _told_to_go(lifeline: Lifeline, deadline: float) -> bool:
    """Waits for the leader's word; False when it went away, and may come again."""
    try:
        return lifeline.hear("go", limit=max(0.1, deadline - time.monotonic())) == "go"
    except (ConnectionError, TimeoutError):
        lifeline.close()
        return False


def _read_line(connection: socket.socket, limit: float):
    """One line of JSON, which must be there within `limit` seconds; None when what comes is something else."""
    deadline = time.monotonic() + limit
    received = bytearray()
    while len(received) < _MOST and b"\n" not in received[-65536:]:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        more = connection.recv(65536)
        if not more:
            break
        received += more
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    try:
        return json.loads(received)
    except (ValueError, RecursionError):
        return None


def _repeated(text, limit: int = 2000) -> str:
    """What came from the network, where a stranger may have said it, as one line for a person."""
    text = one_line(str(text))
    return text if len(text) <= limit else f"{text[:limit]}..."
