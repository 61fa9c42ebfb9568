"""Strangers at the ports that Python code reads say anything, nothing, half of it or very much: the job goes on."""

import contextlib
import json
import socket
import threading

import pytest
from hypothesis import given

from tests.cluster.test_rendezvous import CHIEF, DEADLINE, PS, agreed, call, cluster, follow, greeting, silent  # noqa: F401
from tests.hostile import contents, examples
from tests.memory import highest_memory
from tests.threads import background
from tf2dist.cluster import rendezvous
from tf2dist.cluster.heartbeat import TaskConnection, TaskLostError
from tf2dist.cluster.peer_calls import PeerCalls
from tf2dist.cluster.rendezvous import RendezvousError, wait_for_followers
from tf2dist.cluster.spec import Cluster, Task

pytestmark = pytest.mark.timeout(120)
_CLUSTER = Cluster({"chief": ("a:1",), "worker": ("b:1", "c:1"), "ps": ("d:1",)}, Task("worker", 1), "a job")
_GREETING = json.dumps(rendezvous._greeting(_CLUSTER, Task("worker", 1))) + "\n"
_MUCH = 100 << 20  # bytes


def said(data):
    """A socket over which this was said."""
    near, far = socket.socketpair()
    with contextlib.suppress(BlockingIOError):
        far.setblocking(False)
        far.send(data)
    far.close()
    return near


@examples()
@given(contents(_GREETING, '{"ok": true}\n', '{"error": "is another one"}\n'))
def test_greetings(data):
    with said(data) as near:
        try:
            found = rendezvous._read_line(near, 5.0)
        except OSError:
            return
    if found is not None:
        why = rendezvous._printable(rendezvous._difference(_CLUSTER, found))
        assert why.isprintable()
        assert len(why) < 3000
        assert rendezvous._printable(found.get("error")).isprintable()
        json.dumps({"error": rendezvous._difference(_CLUSTER, found)})


@examples()
@given(contents("ping\nbye 3\nready\ndone 75\n", "bye 1\nbye 999999999\npreempt\nagain\n", "accept\nrefuse\n"))
def test_messages(data):
    missed = []
    calls = PeerCalls(lambda connection, why: missed.append(why))
    with said(data) as near:
        connection = TaskConnection(near, Task("ps", 0), "a:1")
        with contextlib.suppress(TaskLostError), calls.one():
            while True:
                message, _, number = connection.receive("ready", "bye", "done", limit=5.0).partition(" ")
                assert message in ("ready", "bye", "done")
                assert 0 <= int(number or 0) < 10**9
                if message == "bye":
                    calls.end(connection, number)
    assert all(why.isprintable() for why in missed)


def flood(connection, byte=b"x", size=_MUCH):
    """Sends very much, until the other side has had enough."""
    piece = byte * 65536
    with contextlib.suppress(OSError):
        for _ in range(size // len(piece)):
            connection.sendall(piece)


@pytest.mark.parametrize("byte", [b"x", b" ", b"["], ids=["text", "blanks", "nested"])
def test_very_much_to_a_waiting_task(cluster, byte):  # noqa: F811
    following = {PS: follow(cluster, PS)}
    before = highest_memory()
    strangers = [background(lambda: flood(call(cluster, PS), byte)) for _ in range(4)]
    for stranger in strangers:
        stranger.result(60)
    agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)
    assert highest_memory() - before < 64 << 20


@pytest.mark.slow
def test_very_much_from_what_listens_at_the_address(cluster):  # noqa: F811
    before = highest_memory()

    def serve():
        with socket.create_server(("127.0.0.1", cluster.port(PS))) as server:
            server.settimeout(3.0)
            with contextlib.suppress(OSError):
                while True:
                    flood(server.accept()[0])

    serving = background(serve)
    with pytest.raises(RendezvousError, match=r"ps 0 at .* is missing"):
        wait_for_followers(cluster, [PS], 1.0)
    serving.result(60)
    assert highest_memory() - before < 64 << 20


def test_very_much_over_a_connection_that_stands():
    """From a task of the job that has gone mad, or a stranger who knew the greeting: it is no message, and no loss."""
    near, far = socket.socketpair()
    before = highest_memory()
    connection = TaskConnection(near, Task("ps", 0), "a:1")
    heard = background(connection.receive, "done", limit=60.0)
    flood(far)
    far.sendall(b"\ndone\n")
    assert heard.result(60) == "done"
    assert highest_memory() - before < 64 << 20
    near.close()
    far.close()


@pytest.mark.slow
def test_many_who_stay(cluster, monkeypatch):  # noqa: F811
    """They say nothing, or half a greeting, and do not go: each costs a thread for as long as a greeting may take."""
    monkeypatch.setattr(rendezvous, "_ANSWER_TIMEOUT", 5.0)
    following = {PS: follow(cluster, PS)}
    strangers = [call(cluster, PS) for _ in range(200)]
    for number, stranger in enumerate(strangers):
        stranger.sendall(greeting(cluster, PS)[: number % 50])
    agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)
    for stranger in strangers:
        stranger.close()


def test_a_greeting_of_almost_too_much(cluster, capfd):  # noqa: F811
    """A stranger knows how to greet, and says a megabyte of it; what is answered and logged is short."""
    following = {PS: follow(cluster, PS)}
    words = json.dumps({"tf2dist": 1, "to": "x" * 900_000, "from": "\x1b" * 100})
    with call(cluster, PS) as stranger:
        stranger.sendall(words.encode() + b"\n")
        answer = stranger.makefile().readline()
    assert len(answer) < 5000
    agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)
    assert len(capfd.readouterr().err) < 5000


def test_no_thread_is_left(cluster, monkeypatch):  # noqa: F811
    """Those who connect meanwhile are turned away, and may come again."""
    start, refused = threading.Thread.start, []

    def refuse(thread):
        if thread._target is rendezvous._receive_greeting and len(refused) < 3:  # pyright: ignore
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    following = {PS: follow(cluster, PS)}
    agreed(cluster, wait_for_followers(cluster, [PS], DEADLINE), following)
    assert len(refused) == 3


def test_the_end_of_a_long_line_is_no_message():
    near, far = socket.socketpair()
    with near, far:
        far.sendall(b"x" * 10_000 + b"done\nbye 3\n")
        assert TaskConnection(near, Task("ps", 0), "a:1").receive("done", "bye", limit=DEADLINE) == "bye 3"
