"""What tests of connections between tasks share: both ends of one, and impatient clocks."""

import socket
from concurrent.futures import Future

import pytest

from tests.threads import DEADLINE, nobody_listens
from tf2dist.cluster import heartbeat
from tf2dist.cluster.heartbeat import TaskConnection
from tf2dist.cluster.spec import Task
from tf2dist.cluster.task_monitor import LeaderMonitor
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


class Policy:
    """Of a job that `fatal` losses end."""

    workers_grace = 0.1

    def __init__(self, fatal):
        self._fatal = fatal

    def ends_job(self, lost, *, restores_servers=False):
        return self._fatal(lost)

    def is_server(self, task):
        return task.job == "ps"

    def is_data_worker(self, task):
        return task.job == "data_worker"

    def waits_for_workers(self, lost):
        return False

    def lets_go(self, task, lost):
        return False


@pytest.fixture
def end(ended):
    """What a monitor calls to end the process; the first reason counts."""
    return lambda why: ended.done() or ended.set_result(why)


@pytest.fixture
def lead(end):
    """lead(*lines): a monitor of them; `fatal` tells whether the losses of tasks end the job."""

    def lead(*lines, fatal=lambda lost: False, policy=None, **kwargs):
        connections = [line for line, _ in lines]
        return LeaderMonitor(connections, policy or Policy(fatal), end, **kwargs)

    return lead


@pytest.fixture
def lively(monkeypatch):
    monkeypatch.setattr(heartbeat, "PING_INTERVAL", 0.01)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(heartbeat, "GRACE", 0.05)
