"""Heartbeats between the task that leads a job and each other task, from the job's start to its end.

TensorFlow's servers never exit by themselves (tensorflow#4713), and a peer that has lost another one waits for many
minutes. So the connection over which two tasks found each other (`rendezvous`) stays open: the leader sends over it
that the job is done, and each side notices at once when the other one has ended. Imports no TensorFlow.

Messages, one a line: `go` (all tasks are there: start), `ready` (a server serves), `ping`, `bye N` (a peer has
ended its program after N calls of `fit`, `evaluate` and `predict`), `again` (before that: since the job was preempted),
<<<<<<< HEAD
`raised N` (a peer has left the Nth of these calls by an exception), `keeps N K` (parameter servers hold a training, in
TensorFlow's context N, which server K is to save should the coordinator be lost; 0 for none any more),
`preempt` (a task was asked to stop), `accept` or `refuse` (the coordinator's answer to a server: the job saves and
=======
`raised N` (a peer has left the Nth of these calls by an exception),
`preempt` (a task was asked to stop), `dispatcher N` (to a data worker: the dispatcher of the data service listens at
port N of the leader's host), `accept` or `refuse` (the coordinator's answer to a server: the job saves and
>>>>>>> 9a825614788e37b5647b75109a5c32f24b648433
ends, or goes on), `done` (the job is over), `done N` (and all tasks end with status N), `late` (the leader counts this
task as lost, since nothing came from it for the grace period). Of a job that may stall (`stalls`): `stalled` (a peer
has waited too long), `ask` and its answer `state`, `stacks` and its answer `dumped`.
"""

from __future__ import annotations

import contextlib
import math
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence

from tf2dist.cluster.spec import Task
from tf2dist.system.tcp_sockets import keep_through_cuts, outlive_cut_networks, own_tcp_sockets

PING_INTERVAL = 5.0  # seconds between two heartbeats
GRACE = 60.0  # seconds without a message after which a task counts as lost; a stopped or overloaded host can be late
SILENCE = 15.0  # seconds without a message after which the leader says whom the job may wait for
_MESSAGE = re.compile(rb"(state)(?: \d{1,9}){4}|(keeps) \d{1,20} \d{1,9}|(?!keeps)([a-z]+)(?: \d{1,9})?")
_LONGEST = 64  # bytes, more than any message has
_EXIT_TIMEOUT = 30.0  # seconds that a coordinator gets to exit after it has sent that the job is done


class TaskLostError(ConnectionError):
    """Another task has ended, or has sent nothing for longer than the grace period."""


class CountedAsLostError(TaskLostError):
    """The other task counts this one as lost, and goes on without it."""


class TaskConnection:
    """One open connection to `task`, which listens at `address`."""

    def __init__(self, connection: socket.socket, task: Task, address: str) -> None:
        self.task = task
        self.address = address
        self._socket = connection
        # A socket has one timeout, and one thread receives while another one sends: so neither may rely on it.
        self._socket.setblocking(False)
        self._peer = _peer_address(connection)
        with contextlib.suppress(OSError):  # no TCP
            keep_through_cuts(connection, 2 * GRACE)
        self._buffer = b""
        self._sending = threading.RLock()  # a handler of a signal may send while its thread does

    def __str__(self) -> str:
        return f"{self.task} at {self.address}"

    def send(self, message: str) -> None:
        """Sends a message. It does not raise when the other task has ended: `receive` does."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.send(message.encode() + b"\n")

    def receive(
        self, *messages: str, limit: float | None = None, on_silence: Callable[[], object] | None = None
    ) -> str:
        """Waits for one of `messages` and returns it with its number, if any; any other message counts as a heartbeat.

        Args:
          messages: what to wait for.
          limit: seconds to wait; as long as there are heartbeats if not given.
          on_silence: called each time that nothing at all has come for `SILENCE` seconds.

        Raises:
          TaskLostError: the connection has ended, nothing at all came for the grace period, or the other task has
            waited that long for this one.
          TimeoutError: none of the messages came within `limit` seconds.
        """
        deadline = None if limit is None else time.monotonic() + limit
        while True:
            while b"\n" in self._buffer:
                line, self._buffer = self._buffer.split(b"\n", 1)
                found = _MESSAGE.fullmatch(line)
                if line == b"late":
                    raise CountedAsLostError(
                        f"{self} counts this task as lost: it gave no sign of life for {GRACE:g} s"
                    )
                if found and (found[1] or found[2] or found[3]).decode() in messages:
                    return line.decode()
            self._buffer = self._buffer[:_LONGEST]  # the beginning of a line that goes on, and is none of ours
            left = GRACE if deadline is None else min(GRACE, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"{self} did not say {' or '.join(messages)} within {limit:g} s")
            waited = 0.0
            if on_silence is not None and left > SILENCE and not self._poll(select.POLLIN, SILENCE):
                on_silence()
                waited = SILENCE
            if not self._poll(select.POLLIN, left - waited):
                if left == GRACE:
                    raise TaskLostError(f"{self} has given no sign of life for {GRACE:g} s")
                continue
            try:
                more = self._socket.recv(4096)
            except BlockingIOError:
                continue
            except OSError as error:
                raise TaskLostError(f"{self} is gone: {error.strerror or error}") from None
            if not more:
                raise TaskLostError(f"{self} is gone: it ended before the job was done")
            self._buffer += more

    def wait_until_ended(self, limit: float) -> None:
        """Waits until the other task has ended the connection, for at most `limit` seconds."""
        with contextlib.suppress(TaskLostError, TimeoutError):
            self.receive(limit=limit)

    def has_ended(self) -> bool:
        """Returns whether the other task has ended the connection."""
        return self._poll(select.POLLRDHUP, 0)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def shut_down_all(self) -> None:
        """Shuts down all connections of this process to the task, also TensorFlow's.

        Nothing tells TensorFlow that a host was cut off: it would wait for the answer of its server until the kernel
        gives up sending, after a quarter of an hour, or for ever where nothing is to be sent.

        Raises:
          OSError: no file descriptor is left to look at the others with.
        """
        for connection in own_tcp_sockets():
            if self._peer and _peer_address(connection) == self._peer:
                with contextlib.suppress(OSError):  # not connected any more
                    connection.shutdown(socket.SHUT_RDWR)

    def _poll(self, events: int, seconds: float) -> bool:
        poll = select.poll()
        try:
            poll.register(self._socket, events)
        except ValueError:  # it was closed by another thread: `receive` finds that out
            return True
        return bool(poll.poll(math.ceil(1000 * seconds)))


def start_heartbeats(connections: Sequence[TaskConnection]) -> Callable[[], None]:
    """Sends heartbeats over `connections` from a thread; returns a function that stops it.

    It also has TensorFlow's servers in this process keep their connections for twice the grace period, see
    `outlive_cut_networks`.

    Args:
      connections: may change while the heartbeats are sent.
    """
    stopped = threading.Event()

    def ping() -> None:
        while not stopped.wait(PING_INTERVAL):
            for connection in list(connections):
                connection.send("ping")
            outlive_cut_networks(2 * GRACE)

    threading.Thread(target=ping, name="heartbeats", daemon=True).start()
    return stopped.set


@contextlib.contextmanager
def sending_heartbeats(connections: Sequence[TaskConnection]) -> Generator[None]:
    """Sends heartbeats over `connections`, which may change, for as long as the block takes."""
    stop = start_heartbeats(connections)
    try:
        yield
    finally:
        stop()


def wait_until_done(
    connection: TaskConnection,
    on_answer: Callable[[bool], object] = lambda accepted: None,
    on_request: Callable[[str], object] = lambda message: None,
    on_kept: Callable[[int, int], object] = lambda context, saver: None,
) -> int:
    """Waits, in a server, until the job is done and the coordinator has ended; returns the status to end with.

    A coordinator that exits still calls its servers, and logs many errors when they have gone before it.

    Args:
      connection: to the coordinator.
      on_answer: called with whether the coordinator ends the job, when it has answered `preempt`.
      on_request: called with `ask` or `stacks`, when the coordinator has sent that.
      on_kept: called with the two numbers of `keeps`.

    Raises:
      TaskLostError: the coordinator ended before the job was done, or sent nothing for the grace period.
    """
    with sending_heartbeats([connection]):
        expected = "done", "accept", "refuse", "ask", "stacks", "keeps"
        while (message := connection.receive(*expected).partition(" "))[0] != "done":
            if message[0] in ("ask", "stacks"):
                on_request(message[0])
            elif message[0] == "keeps":
                on_kept(*map(int, message[2].split()))
            else:
                on_answer(message[0] == "accept")
    connection.wait_until_ended(_EXIT_TIMEOUT)
    return int(message[2] or 0)


def _peer_address(connection: socket.socket) -> tuple[str, int] | None:
    """Returns address and port of the other end of a TCP connection; None if it has none."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None  # sockets of other families are called by numbers, paths or bytes
    try:
        host, port, *_ = connection.getpeername()
    except OSError:
        return None
    return host.removeprefix("::ffff:"), port  # as an IPv6 socket writes an IPv4 address
