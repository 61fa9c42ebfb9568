"""Connections between tasks: words, signs of life, silence and ends."""

import contextlib
import socket
import threading
import time

import pytest

from tests.threads import DEADLINE, background, stays
from tf2dist.cluster import heartbeat
from tf2dist.cluster.heartbeat import (
    CountedAsLostError,
    TaskConnection,
    TaskLostError,
    sending_heartbeats,
    wait_until_done,
)
from tf2dist.cluster.spec import Task

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("ended")]


class TestTaskConnection:
    def test_words_come_in_order_and_others_are_passed_over(self, connect):
        line, other = connect()
        other.say("ping", "ready", "ping", "nonsense", "", "bye", "ready")
        assert [line.receive("ready", "bye") for _ in range(3)] == ["ready", "bye", "ready"]

    def test_a_word_in_pieces(self, connect):
        line, other = connect()
        heard = background(line.receive, "done")
        for piece in (b"do", b"ne\ngo", b"\n"):
            other.socket.sendall(piece)
        assert heard.result(DEADLINE) == "done"
        assert line.receive("go", limit=DEADLINE) == "go"

    def test_half_a_word_is_none(self, connect):
        line, other = connect()
        other.socket.sendall(b"done")
        other.socket.shutdown(socket.SHUT_WR)
        with pytest.raises(TaskLostError):
            line.receive("done")

    def test_bytes_that_are_no_text(self, connect):
        line, other = connect()
        other.socket.sendall(b"\xff\xfe\n\0\ndone\n")
        assert line.receive("done") == "done"

    def test_what_is_said_arrives(self, connect):
        line, other = connect()
        line.send("go")
        line.send("done")
        assert (other.next(), other.next()) == ("go", "done")

    def test_an_end_names_the_task(self, connect):
        line, other = connect("worker", 3)
        other.end()
        with pytest.raises(TaskLostError, match=r"^worker 3 at worker3:2222 is gone"):
            line.receive("done")

    def test_words_before_the_end_are_heard(self, connect):
        line, other = connect()
        other.say("done")
        other.end()
        assert line.receive("done") == "done"
        with pytest.raises(TaskLostError):
            line.receive("gone")

    def test_a_reset_is_an_end(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            far = socket.create_connection(server.getsockname())
            near, _ = server.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() resets
        far.close()
        with near, pytest.raises(TaskLostError, match="ps 0 at here is gone: Connection reset"):
            TaskConnection(near, Task("ps", 0), "here").receive("done")

    def test_silence(self, connect, hasty):
        line, _ = connect()
        with pytest.raises(TaskLostError, match=r"ps 0 at ps0:2222 has given no sign of life for 0\.05 s"):
            line.receive("done")

    def test_a_silence_is_noted_once_until_the_next_sign_of_life(self, connect, monkeypatch):
        monkeypatch.setattr(heartbeat, "SILENCE", 0.02)
        line, other = connect()
        noted = []

        def note():
            noted.append(None)
            threading.Timer(0.2, other.say, ["ping" if len(noted) < 3 else "done"]).start()

        assert line.receive("done", on_silence=note) == "done"
        assert len(noted) == 3

    def test_every_sign_of_life_starts_the_grace_period_anew(self, connect, monkeypatch):
        line, other = connect()
        words = iter(["ping", "ping", "ping", "done"])
        patience = []
        poll = TaskConnection._poll

        def noted(self, events, seconds):
            patience.append(seconds)
            other.say(next(words))
            return poll(self, events, seconds)

        monkeypatch.setattr(TaskConnection, "_poll", noted)
        assert line.receive("done") == "done"
        assert patience == [heartbeat.GRACE] * 4

    def test_a_limit_holds_also_against_signs_of_life(self, connect):
        line, other = connect()
        over = threading.Event()

        def chatter():
            while not over.wait(0.01):
                other.say("ping")

        chatting = background(chatter)
        with pytest.raises(TimeoutError, match=r"ps 0 at ps0:2222 did not say done or bye within 0\.2 s") as caught:
            line.receive("done", "bye", limit=0.2)
        assert not isinstance(caught.value, TaskLostError)
        over.set()
        chatting.result(DEADLINE)

    def test_a_limit_of_nothing_takes_what_is_there(self, connect):
        line, other = connect()
        other.say("ping", "go")
        assert line.receive("ping", limit=DEADLINE) == "ping"
        assert line.receive("go", limit=0) == "go"
        with pytest.raises(TimeoutError):
            line.receive("go", limit=0)

    def test_saying_does_not_touch_how_long_another_thread_hears(self, connect):
        near, far = socket.socketpair()
        with near, far:
            line = TaskConnection(near, Task("ps", 0), "here")
            before = near.gettimeout()
            line.send("ping")
            assert near.gettimeout() == before

    def test_nothing_happens_when_the_other_side_has_ended(self, connect):
        line, other = connect()
        other.end()
        for _ in range(3):
            line.send("ping")

    def test_a_side_that_reads_nothing_does_not_hold_up_the_one_that_speaks(self, connect):
        line, other = connect()
        said = background(lambda: [line.send("ping") for _ in range(200_000)])
        assert said.result(DEADLINE)
        assert other.next() == "ping"

    def test_ended(self, connect):
        line, other = connect()
        assert not line.has_ended()
        other.say("ping")
        assert not line.has_ended()
        other.end()
        assert line.has_ended()
        assert line.receive("ping") == "ping"

    def test_a_connection_that_is_closed_meanwhile_is_lost(self, connect):
        """As by the thread that replaces a lost task, while another one still receives or looks."""
        line, _ = connect()
        line.close()
        assert line.has_ended()
        with pytest.raises(TaskLostError, match="ps 0 at ps0:2222 is gone"):
            line.receive("done")

    def test_kept_alive(self, connect, lively):
        line, other = connect()
        late, later = connect()
        lines = [line]
        with sending_heartbeats(lines):
            assert [other.next() for _ in range(3)] == ["ping"] * 3
            lines.append(late)
            assert later.next() == "ping"
        line.send("end")
        assert other.next(besides=["ping"]) == "end"


class TestServeUntilDone:
    def test_done_and_then_the_coordinators_own_end(self, connect):
        line, other = connect("chief", 0)
        serving = background(wait_until_done, line)
        other.say("ping", "done")
        assert stays(serving)
        other.end()
        assert serving.result(DEADLINE) == 0

    def test_the_status_that_the_coordinator_says(self, connect):
        """A server that was asked to stop has an answer before."""
        line, other = connect("chief", 0)
        answers = []
        serving = background(wait_until_done, line, answers.append)
        other.say("refuse", "ping", "accept", "done 75")
        other.socket.shutdown(socket.SHUT_WR)
        assert serving.result(DEADLINE) == 75
        assert answers == [False, True]

    def test_a_coordinator_that_does_not_end(self, connect, monkeypatch):
        monkeypatch.setattr(heartbeat, "_EXIT_TIMEOUT", 0.05)
        line, other = connect("chief", 0)
        other.say("done")
        background(wait_until_done, line).result(DEADLINE)

    def test_a_coordinator_that_dies(self, connect):
        line, other = connect("chief", 0)
        serving = background(wait_until_done, line)
        other.say("ping")
        other.end()
        with pytest.raises(TaskLostError, match="chief 0 at chief0:2222 is gone: it ended before the job was done"):
            serving.result(DEADLINE)

    def test_a_silent_coordinator(self, connect, hasty):
        line, _ = connect("chief", 0)
        with pytest.raises(TaskLostError, match="chief 0 at chief0:2222 has given no sign of life"):
            wait_until_done(line)

    def test_a_coordinator_that_counts_this_task_as_lost(self, connect):
        """A task that was stopped goes on after the grace period: its coordinator is not gone."""
        line, other = connect("chief", 0)
        other.say("late")
        other.end()
        lost = "chief 0 at chief0:2222 counts this task as lost: it gave no sign of life for 60 s"
        with pytest.raises(CountedAsLostError, match=lost):
            wait_until_done(line)

    def test_only_a_coordinator_that_goes_on_counts_it_as_lost(self, connect):
        """Of one that is gone a server saves what it holds."""
        line, other = connect("chief", 0)
        other.end()
        with pytest.raises(TaskLostError) as lost:
            wait_until_done(line)
        assert not isinstance(lost.value, CountedAsLostError)

    def test_what_it_holds(self, connect):
        line, other = connect("chief", 0)
        kept = []
        serving = background(wait_until_done, line, on_kept=lambda *numbers: kept.append(numbers))
        other.say(f"keeps {2**64 - 1} 3", "keeps 0 0", "keeps", "keeps 1", f"keeps {10**20} 0", "done")
        other.end()
        assert serving.result(DEADLINE) == 0
        assert kept == [(2**64 - 1, 3), (0, 0)]

    def test_gives_signs_of_life_until_it_is_done(self, connect, lively):
        line, other = connect("chief", 0)
        serving = background(wait_until_done, line)
        assert [other.next() for _ in range(3)] == ["ping"] * 3
        other.say("done")
        other.socket.shutdown(socket.SHUT_WR)
        serving.result(DEADLINE)


def test_connections_of_servers_outlive_a_network_that_is_cut(monkeypatch):
    """TensorFlow's own in this process: longer than a task may be silent."""
    monkeypatch.setattr(heartbeat, "PING_INTERVAL", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)  # as gRPC does
        stop = heartbeat.start_heartbeats([])
        deadline = time.monotonic() + DEADLINE
        while server.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        stop()
        assert server.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000


def test_all_connections_to_a_task_that_is_lost_are_ended():
    """Also those of others in this process, however they write its address; and no other ones."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        elsewhere = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        pair = [stack.enter_context(end) for end in socket.socketpair()]
        near = stack.enter_context(socket.create_connection(server.getsockname()))
        mapped = stack.enter_context(socket.socket(socket.AF_INET6))
        mapped.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        other = stack.enter_context(socket.create_connection(elsewhere.getsockname()))
        far = [stack.enter_context(server.accept()[0]) for _ in range(2)]
        for name in ("ps", "worker"):  # one over TCP, and one over something that has no address
            TaskConnection(near if name == "ps" else pair[0], Task(name, 0), "here").shut_down_all()
        for end in (mapped, *far):
            end.settimeout(DEADLINE)
            assert end.recv(1) == b""
        for here, there in ((other, stack.enter_context(elsewhere.accept()[0])), pair):
            here.sendall(b"x")
            assert there.recv(1) == b"x"


def test_sockets_that_have_no_such_addresses_are_passed_over():
    """They are called by numbers, or by bytes; and they do not keep the others from being ended."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind("")  # in the abstract namespace, with a name of the kernel's choice
        local.listen()
        caller = stack.enter_context(socket.socket(socket.AF_UNIX))
        caller.connect(local.getsockname())
        assert isinstance(caller.getpeername(), bytes)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = stack.enter_context(socket.create_connection(server.getsockname()))
        far = stack.enter_context(server.accept()[0])
        TaskConnection(near, Task("ps", 0), "here").shut_down_all()
        far.settimeout(DEADLINE)
        assert far.recv(1) == b""
        caller.sendall(b"x")
