"""The connection between the task that leads a job and each other task, from its start to its end.

TensorFlow's servers never exit by themselves (tensorflow#4713), and a peer that has lost another one waits for many
minutes. So the connection over which two tasks found each other (`preflight`) stays open: the leader says over it
when the job is done, and either side learns at once when the other has died. Imports no TensorFlow.

Words, one a line: `go` (all tasks are there: start), `ready` (a server serves), `ping`, `bye` (a peer has finished
its loop), `done` (the job is over).
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator

from tf2dist.cluster import Task

PING = 5.0  # seconds between two signs of life
GRACE = 60.0  # seconds without one after which a task counts as gone; a stopped or overloaded host can be late
_TEARDOWN = 30.0  # seconds that a coordinator gets to exit after it has said that the job is done


class Gone(ConnectionError):
    """The other side has died, or has not been heard of for longer than the grace period."""


class Lifeline:
    """One open connection to `task`, which listens at `address`."""

    def __init__(self, connection: socket.socket, task: Task, address: str):
        self.task = task
        self.address = address
        self._socket = connection
        # A socket has one timeout, and one thread hears while another says: so neither may rely on it.
        self._socket.setblocking(False)
        self._peer = _peer(connection)
        self._buffer = b""
        self._sending = threading.Lock()

    def __str__(self) -> str:
        return f"{self.task} at {self.address}"

    def say(self, word: str) -> None:
        """Sends a word. A side that has died is noticed by `hear`, not here."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.send(word.encode() + b"\n")

    def hear(self, *words: str, limit: float | None = None) -> str:
        """Waits for one of `words`; others are signs of life.

        Raises:
          Gone: the connection ended, or nothing at all was heard for the grace period.
          TimeoutError: the words did not come within `limit` seconds.
        """
        deadline = None if limit is None else time.monotonic() + limit
        while True:
            while b"\n" in self._buffer:
                line, self._buffer = self._buffer.split(b"\n", 1)
                if line.decode(errors="replace") in words:
                    return line.decode()
            left = GRACE if deadline is None else min(GRACE, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"{self} did not say {' or '.join(words)} within {limit:g} s")
            if not self._poll(select.POLLIN, left):
                if left == GRACE:
                    raise Gone(f"{self} has given no sign of life for {GRACE:g} s")
                continue
            try:
                more = self._socket.recv(4096)
            except BlockingIOError:
                continue
            except OSError as error:
                raise Gone(f"{self} is gone: {error.strerror or error}") from None
            if not more:
                raise Gone(f"{self} is gone: it ended before the job was done")
            self._buffer += more

    def ended(self) -> bool:
        """Has the other side ended the connection?"""
        return self._poll(select.POLLRDHUP, 0)

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def hang_up(self) -> None:
        """Ends all connections of this process to the task, also TensorFlow's.

        Nobody tells that a host was cut off: what was asked of its server would be waited for until the kernel gives
        up sending, after a quarter of an hour, or for ever where nothing is to be sent.
        """
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # no socket, not connected, or closed meanwhile
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    with socket.socket(fileno=os.dup(fd)) as connection:
                        if self._peer and _peer(connection) == self._peer:
                            connection.shutdown(socket.SHUT_RDWR)

    def _poll(self, events: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, events)
        return bool(poll.poll(math.ceil(1000 * seconds)))


@contextlib.contextmanager
def kept_alive(lifelines: list[Lifeline]) -> Iterator[None]:
    """Gives signs of life over `lifelines`, a list that may grow, for as long as the block takes."""
    over = threading.Event()

    def ping():
        while not over.wait(PING):
            for line in list(lifelines):
                line.say("ping")

    threading.Thread(target=ping, daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Lead:
    """The leader's end of all lifelines: a coordinator's to its servers, or the first peer's to the others.

    Args:
      lifelines: one to each other task.
      fatal: asks whether the job cannot go on without the tasks that are gone. Then this process ends with status
        1 and one line, since its main thread may be waiting inside of TensorFlow for ever.
      again: waits for a task that was lost, and gives the lifeline to what was started in its place; None if nothing
        was before the event that it also gets. Without this, a task that is lost stays lost.
    """

    def __init__(
        self,
        lifelines: list[Lifeline],
        fatal: Callable[[list[Task]], bool],
        again: Callable[[Task, threading.Event], Lifeline | None] = lambda task, over: None,
    ):
        self.lifelines = lifelines
        self.lost: list[Task] = []
        self.first_loss = ""
        self._fatal = fatal
        self._again = again
        self._over = threading.Event()
        self._bye = {line.task: threading.Event() for line in lifelines}
        self._ready = {line.task: threading.Event() for line in lifelines}
        for line in lifelines:
            threading.Thread(target=self._listen, args=(line,), daemon=True).start()
        threading.Thread(target=self._ping, daemon=True).start()

    def wait_ready(self, limit: float) -> None:
        """Waits until every server serves.

        Raises:
          Gone: names one that ended before.
          TimeoutError: names the first that did not within `limit` seconds.
        """
        deadline = time.monotonic() + limit
        for line in self.lifelines:
            if not self._ready[line.task].wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"{line} did not start its server within {limit:g} s")
            if line.task in self.lost:
                raise Gone(f"{line} is gone: it ended before the job began")

    def end(self, *, together: bool) -> None:
        """Tells every task that the job is done; `together`: after all of them have finished their own loops."""
        for line in self.lifelines if together else ():
            while not self._bye[line.task].wait(1.0) and line.task not in self.lost:
                pass  # `_listen` finds out when it is gone, so this ends
        self._over.set()
        for line in self.lifelines:
            line.say("done")

    def _listen(self, line: Lifeline | None) -> None:
        while line and not self._over.is_set():
            self._hear(line)
            line = None if self._over.is_set() else self._replace(line)

    def _replace(self, line: Lifeline) -> Lifeline | None:
        """Waits until the task that this line led to has been started again."""
        line.close()
        new = self._again(line.task, self._over)
        if new:
            self.lifelines[self.lifelines.index(line)] = new
            new.say("go")
            if self._over.is_set():  # `end` may have looked for it too early
                new.say("done")
        return new

    def _hear(self, line: Lifeline) -> None:
        """Listens to a task until it is gone."""
        try:
            while True:
                word = line.hear("ready", "bye")
                (self._ready if word == "ready" else self._bye)[line.task].set()
                if line.task in self.lost:
                    self.lost.remove(line.task)
                    print(f"tf2dist: {line} is back", file=sys.stderr, flush=True)
        except Gone as gone:
            if self._over.is_set():
                return
            self.first_loss = self.first_loss or str(gone)
            if line.task not in self.lost:
                self.lost.append(line.task)
            self._bye[line.task].set()
            self._ready[line.task].set()
            line.hang_up()
            if not self._fatal(self.lost):
                print(f"tf2dist: {gone}; the job goes on without it", file=sys.stderr, flush=True)
            else:
                time.sleep(1.0)  # TensorFlow may have noticed too and be about to raise: its error says more
                _end_process(str(gone))

    def _ping(self) -> None:
        while not self._over.wait(PING):
            for line in self.lifelines:
                line.say("ping")


class Follow:
    """A peer's end of its lifeline to the first peer; ends this process when that one is gone."""

    def __init__(self, lifeline: Lifeline):
        self._lifeline = lifeline
        self._done = threading.Event()
        self.first_loss = ""
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._ping, daemon=True).start()

    def end(self) -> None:
        """Says that this peer has finished its loop and waits until all have: they leave together."""
        self._lifeline.say("bye")
        self._done.wait()  # `_listen` ends the process when the leader is gone, so this ends

    def _listen(self) -> None:
        try:
            self._lifeline.hear("done")
            self._done.set()
        except Gone as gone:
            self.first_loss = str(gone)
            time.sleep(1.0)
            _end_process(str(gone))

    def _ping(self) -> None:
        while not self._done.wait(PING):
            self._lifeline.say("ping")


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    """Address and port at the other end of a TCP connection; None if there is none."""
    try:
        host, port, *_ = connection.getpeername()
    except (OSError, ValueError):
        return None
    return host.removeprefix("::ffff:"), port  # as a socket for both kinds of addresses writes one of the old kind


def serve_until_done(lifeline: Lifeline) -> None:
    """Waits, in a server, for the end of the job, and then for the coordinator's own end.

    A coordinator that exits still talks to its servers, and complains at length when they are gone already.

    Raises:
      Gone: when the coordinator died first, or was silent for longer than the grace period.
    """
    with kept_alive([lifeline]):
        lifeline.hear("done")
    with contextlib.suppress(Gone, TimeoutError):
        lifeline.hear("gone", limit=_TEARDOWN)


def _end_process(why: str) -> None:
    print(f"tf2dist: {why}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)
