"""What tests of connections between tasks share: both ends of one, and impatient clocks."""

import socket
from concurrent.futures import Future

import pytest

from tests.threads import DEADLINE, nobody_listens
from tf2dist.cluster import heartbeat
from tf2dist.cluster.heartbeat import TaskConnection
from tf2dist.cluster.spec import Task
from tf2dist.runtime import logging_setup


class Other:
    """The other end of a connection, as bytes."""

    def __init__(self, end):
        self.socket = end
        self.socket.settimeout(DEADLINE)
        self._lines = end.makefile("rb")

    def say(self, *words):
        self.socket.sendall("".join(f"{word}\n" for word in words).encode())

    def next(self, *, besides=()):
        """The next word that is none of `besides`; empty at the end."""
        while (word := self._lines.readline().decode().rstrip("\n")) in besides:
            pass
        return word

    def end(self):
        self._lines.close()
        self.socket.close()


@pytest.fixture
def connect():
    """connect(job, index): a connection to that task, and its other end."""
    others = []

    def connect(job="ps", index=0):
        near, far = socket.socketpair()
        others.append((near, Other(far)))
        return TaskConnection(near, Task(job, index), f"{job}{index}:2222"), others[-1][1]

    yield connect
    for _, other in others:
        other.end()
    nobody_listens()
    for near, _ in others:
        near.close()


@pytest.fixture
def ended():
    """What the monitor says when it is to end the process."""
    said: Future = Future()
    logging_setup.log_to_stderr()
    yield said
    # The connections have ended, and with them all that hear; none must be left that could end this process.
    nobody_listens()


@pytest.fixture
def lively(monkeypatch):
    monkeypatch.setattr(heartbeat, "PING_INTERVAL", 0.01)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(heartbeat, "GRACE", 0.05)
