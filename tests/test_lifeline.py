import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tests.threads import background
from tf2dist import lifeline
from tf2dist.cluster import Task
from tf2dist.lifeline import Follow, Gone, Lead, Lifeline, kept_alive, serve_until_done

DEADLINE = 20.0  # seconds; for what takes milliseconds on a machine that is not busy
pytestmark = pytest.mark.timeout(60)


class Other:
    """The other end of a lifeline, as bytes."""

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
    """connect(job, index): a lifeline to that task, and its other end."""
    others = []

    def connect(job="ps", index=0):
        near, far = socket.socketpair()
        others.append((near, Other(far)))
        return Lifeline(near, Task(job, index), f"{job}{index}:2222"), others[-1][1]

    yield connect
    for near, other in others:
        other.end()
        near.close()


@pytest.fixture(autouse=True)
def ended(monkeypatch):
    """What was said when the process was to be ended, instead of ending it; and nobody sleeps before that."""
    said: Future = Future()
    monkeypatch.setattr(lifeline, "_end_process", lambda why: said.done() or said.set_result(why))
    monkeypatch.setattr(lifeline, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None))
    yield said
    # The connections have ended, and with them all that hear; none must be left that could end this process.
    nobody_listens()


@pytest.fixture
def lively(monkeypatch):
    monkeypatch.setattr(lifeline, "PING", 0.01)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(lifeline, "GRACE", 0.05)


def stays(future, seconds=0.2):
    """Whether a call has not returned after a time that is long for it."""
    try:
        future.result(timeout=seconds)
    except TimeoutError:
        return True
    return False


def wait_until(true):
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def nobody_listens():
    """Waits for the ends of the threads of leaders and followers, all of whose connections have ended."""
    for thread in threading.enumerate():
        if "_listen" in thread.name:
            thread.join(DEADLINE)
            assert not thread.is_alive()


class TestLifeline:
    def test_words_come_in_order_and_others_are_passed_over(self, connect):
        line, other = connect()
        other.say("ping", "ready", "ping", "nonsense", "", "bye", "ready")
        assert [line.hear("ready", "bye") for _ in range(3)] == ["ready", "bye", "ready"]

    def test_a_word_in_pieces(self, connect):
        line, other = connect()
        heard = background(line.hear, "done")
        for piece in (b"do", b"ne\ngo", b"\n"):
            other.socket.sendall(piece)
        assert heard.result(DEADLINE) == "done"
        assert line.hear("go", limit=DEADLINE) == "go"

    def test_half_a_word_is_none(self, connect):
        line, other = connect()
        other.socket.sendall(b"done")
        other.socket.shutdown(socket.SHUT_WR)
        with pytest.raises(Gone):
            line.hear("done")

    def test_bytes_that_are_no_text(self, connect):
        line, other = connect()
        other.socket.sendall(b"\xff\xfe\n\0\ndone\n")
        assert line.hear("done") == "done"

    def test_what_is_said_arrives(self, connect):
        line, other = connect()
        line.say("go")
        line.say("done")
        assert (other.next(), other.next()) == ("go", "done")

    def test_an_end_names_the_task(self, connect):
        line, other = connect("worker", 3)
        other.end()
        with pytest.raises(Gone, match=r"^worker 3 at worker3:2222 is gone"):
            line.hear("done")

    def test_words_before_the_end_are_heard(self, connect):
        line, other = connect()
        other.say("done")
        other.end()
        assert line.hear("done") == "done"
        with pytest.raises(Gone):
            line.hear("gone")

    def test_a_reset_is_an_end(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            far = socket.create_connection(server.getsockname())
            near, _ = server.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() resets
        far.close()
        with near, pytest.raises(Gone, match="ps 0 at here is gone: Connection reset"):
            Lifeline(near, Task("ps", 0), "here").hear("done")

    def test_silence(self, connect, hasty):
        line, _ = connect()
        with pytest.raises(Gone, match=r"ps 0 at ps0:2222 has given no sign of life for 0\.05 s"):
            line.hear("done")

    def test_every_sign_of_life_starts_the_grace_period_anew(self, connect, monkeypatch):
        line, other = connect()
        words = iter(["ping", "ping", "ping", "done"])
        patience = []
        poll = Lifeline._poll

        def noted(self, events, seconds):
            patience.append(seconds)
            other.say(next(words))
            return poll(self, events, seconds)

        monkeypatch.setattr(Lifeline, "_poll", noted)
        assert line.hear("done") == "done"
        assert patience == [lifeline.GRACE] * 4

    def test_a_limit_holds_also_against_signs_of_life(self, connect):
        line, other = connect()
        over = threading.Event()

        def chatter():
            while not over.wait(0.01):
                other.say("ping")

        chatting = background(chatter)
        with pytest.raises(TimeoutError, match=r"ps 0 at ps0:2222 did not say done or bye within 0\.2 s") as caught:
            line.hear("done", "bye", limit=0.2)
        assert not isinstance(caught.value, Gone)
        over.set()
        chatting.result(DEADLINE)

    def test_a_limit_of_nothing_takes_what_is_there(self, connect):
        line, other = connect()
        other.say("ping", "go")
        assert line.hear("ping", limit=DEADLINE) == "ping"
        assert line.hear("go", limit=0) == "go"
        with pytest.raises(TimeoutError):
            line.hear("go", limit=0)

    def test_saying_does_not_touch_how_long_another_thread_hears(self, connect):
        near, far = socket.socketpair()
        with near, far:
            line = Lifeline(near, Task("ps", 0), "here")
            before = near.gettimeout()
            line.say("ping")
            assert near.gettimeout() == before

    def test_nothing_happens_when_the_other_side_has_ended(self, connect):
        line, other = connect()
        other.end()
        for _ in range(3):
            line.say("ping")

    def test_a_side_that_reads_nothing_does_not_hold_up_the_one_that_speaks(self, connect):
        line, other = connect()
        said = background(lambda: [line.say("ping") for _ in range(200_000)])
        assert said.result(DEADLINE)
        assert other.next() == "ping"

    def test_ended(self, connect):
        line, other = connect()
        assert not line.ended()
        other.say("ping")
        assert not line.ended()
        other.end()
        assert line.ended()
        assert line.hear("ping") == "ping"

    def test_kept_alive(self, connect, lively):
        line, other = connect()
        late, later = connect()
        lines = [line]
        with kept_alive(lines):
            assert [other.next() for _ in range(3)] == ["ping"] * 3
            lines.append(late)
            assert later.next() == "ping"
        line.say("end")
        assert other.next(besides=["ping"]) == "end"


def lead(*lines, fatal=lambda lost: False):
    return Lead([line for line, _ in lines], fatal=fatal)


class TestLead:
    def test_ready(self, connect):
        lines = [connect("ps", 0), connect("worker", 0), connect("worker", 1)]
        leader = lead(*lines)
        waiting = background(leader.wait_ready, DEADLINE)
        for _, other in lines[::-1]:
            assert not waiting.done()
            other.say("ready")
        waiting.result(DEADLINE)

    def test_ready_waits_for_all(self, connect):
        lines = [connect("ps", 0), connect("worker", 0)]
        lines[0][1].say("ready")
        with pytest.raises(TimeoutError, match=r"worker 0 at worker0:2222 did not start its server within 0\.1 s"):
            lead(*lines).wait_ready(0.1)

    def test_a_task_that_ends_before_it_is_ready_is_not_waited_for(self, connect):
        lines = [connect("ps", 0), connect("worker", 0)]
        waiting = background(lead(*lines).wait_ready, 10 * DEADLINE)
        lines[0][1].say("ready")
        lines[1][1].end()
        with pytest.raises(Gone, match="worker 0 at worker0:2222 is gone"):
            waiting.result(DEADLINE)

    def test_gives_signs_of_life(self, connect, lively):
        lines = [connect("ps", 0), connect("worker", 0)]
        leader = lead(*lines)
        for _, other in lines:
            assert [other.next() for _ in range(3)] == ["ping"] * 3
        leader.end(together=False)

    def test_a_coordinator_ends_when_it_has_finished(self, connect):
        lines = [connect("ps", 0), connect("worker", 0)]
        leader = lead(*lines)
        leader.end(together=False)
        assert [other.next() for _, other in lines] == ["done", "done"]

    def test_peers_end_together(self, connect):
        lines = [connect("worker", 1), connect("worker", 2)]
        leader = lead(*lines)
        (_, first), (_, second) = lines
        second.say("bye")
        assert leader._bye[Task("worker", 2)].wait(DEADLINE)
        ending = background(leader.end, together=True)
        assert stays(ending)
        first.say("bye")
        ending.result(DEADLINE)
        assert [first.next(), second.next()] == ["done", "done"]

    def test_a_lost_task_that_the_job_can_do_without(self, connect, ended, capfd):
        lines = [connect("worker", 0), connect("worker", 1)]
        asked: Future = Future()

        def fatal(lost):
            asked.set_result(list(lost))
            return False

        leader = lead(*lines, fatal=fatal)
        lines[0][1].end()
        assert asked.result(DEADLINE) == [Task("worker", 0)]
        lines[1][1].say("bye")
        background(leader.end, together=True).result(DEADLINE)
        assert lines[1][1].next() == "done"
        lost = "worker 0 at worker0:2222 is gone: it ended before the job was done"
        assert (leader.lost, leader.first_loss) == ([Task("worker", 0)], lost)
        assert not ended.done()
        lines[1][1].end()
        nobody_listens()
        assert capfd.readouterr().err == f"tf2dist: {lost}; the job goes on without it\n"

    def test_a_lost_task_that_the_job_cannot_do_without(self, connect, ended):
        lines = [connect("ps", 0), connect("worker", 0)]
        lead(*lines, fatal=lambda lost: Task("ps", 0) in lost)
        lines[0][1].end()
        assert ended.result(DEADLINE) == "ps 0 at ps0:2222 is gone: it ended before the job was done"

    def test_the_last_of_several_is_fatal(self, connect, ended):
        lines = [connect("worker", 0), connect("worker", 1)]
        asked = [Future(), Future()]

        def fatal(lost):
            lost = set(lost)
            asked[len(lost) - 1].set_result(lost)
            return len(lost) == 2

        lead(*lines, fatal=fatal)
        lines[1][1].end()
        assert asked[0].result(DEADLINE) == {Task("worker", 1)}
        lines[0][1].end()
        assert asked[1].result(DEADLINE) == {Task("worker", 0), Task("worker", 1)}
        assert ended.result(DEADLINE).startswith("worker 0 at worker0:2222 is gone")

    def test_a_silent_task_is_lost(self, connect, ended, hasty):
        lead(connect("ps", 0), fatal=bool)
        assert ended.result(DEADLINE) == "ps 0 at ps0:2222 has given no sign of life for 0.05 s"

    def test_a_lost_task_comes_back_and_may_be_lost_again(self, connect, ended, capfd):
        lines = [connect("worker", 0), *(connect("worker", 1) for _ in range(3))]
        new = iter([line for line, _ in lines[2:]])
        asked = []

        def again(task, over):
            asked.append(task)
            return next(new, None)

        lead = Lead([line for line, _ in lines[:2]], fatal=lambda lost: len(lost) == 2, again=again)
        for line, other in lines[1:3]:
            other.end()
            back = lines[lines.index((line, other)) + 1]
            assert back[1].next() == "go"
            assert lead.lost == [Task("worker", 1)]
            back[1].say("ready")
            wait_until(lambda: not lead.lost)
            assert lead.lifelines[1] is back[0]
        lead.end(together=False)
        assert lines[3][1].next(besides=("ping",)) == "done"
        assert lines[0][1].next(besides=("ping",)) == "done"
        assert asked == [Task("worker", 1)] * 2
        assert "worker 1 at worker1:2222 is back" in capfd.readouterr().err
        assert not ended.done()

    def test_one_that_comes_back_at_the_very_end_hears_that_the_job_is_done(self, connect):
        (line, other), (new, back) = connect("worker", 0), connect("worker", 0)
        come = threading.Event()
        lead = Lead([line], fatal=lambda lost: False, again=lambda task, over: come.wait(DEADLINE) and new)
        other.end()
        wait_until(lambda: lead.lost)
        lead.end(together=False)
        come.set()
        assert (back.next(), back.next()) == ("go", "done")

    def test_after_the_end_nobody_is_lost(self, connect, ended):
        lines = [connect("worker", 0), connect("ps", 0)]
        leader = lead(*lines, fatal=lambda lost: True)
        leader.end(together=False)
        for _, other in lines:
            other.end()
        nobody_listens()
        assert (leader.lost, leader.first_loss) == ([], "")
        assert not ended.done()


class TestFollow:
    def test_leaves_with_the_others(self, connect, ended):
        line, other = connect("worker", 0)
        follow = Follow(line)
        ending = background(follow.end)
        assert other.next() == "bye"
        assert stays(ending)
        other.say("ping", "done")
        ending.result(DEADLINE)
        assert not ended.done()

    def test_gives_signs_of_life(self, connect, lively):
        line, other = connect("worker", 0)
        follow = Follow(line)
        assert [other.next() for _ in range(3)] == ["ping"] * 3
        other.say("done")
        follow.end()

    def test_ends_when_the_leader_has(self, connect, ended):
        line, other = connect("worker", 0)
        follow = Follow(line)
        assert follow.first_loss == ""
        other.end()
        assert ended.result(DEADLINE) == "worker 0 at worker0:2222 is gone: it ended before the job was done"
        assert follow.first_loss == ended.result()

    def test_ends_when_the_leader_ends_while_it_is_waited_for(self, connect, ended):
        line, other = connect("worker", 0)
        background(Follow(line).end)
        assert other.next() == "bye"
        other.end()
        assert "worker 0 at worker0:2222 is gone" in ended.result(DEADLINE)


class TestServeUntilDone:
    def test_done_and_then_the_coordinators_own_end(self, connect):
        line, other = connect("chief", 0)
        serving = background(serve_until_done, line)
        other.say("ping", "done")
        assert stays(serving)
        other.end()
        serving.result(DEADLINE)

    def test_a_coordinator_that_does_not_end(self, connect, monkeypatch):
        monkeypatch.setattr(lifeline, "_TEARDOWN", 0.05)
        line, other = connect("chief", 0)
        other.say("done")
        background(serve_until_done, line).result(DEADLINE)

    def test_a_coordinator_that_dies(self, connect):
        line, other = connect("chief", 0)
        serving = background(serve_until_done, line)
        other.say("ping")
        other.end()
        with pytest.raises(Gone, match="chief 0 at chief0:2222 is gone: it ended before the job was done"):
            serving.result(DEADLINE)

    def test_a_silent_coordinator(self, connect, hasty):
        line, _ = connect("chief", 0)
        with pytest.raises(Gone, match="chief 0 at chief0:2222 has given no sign of life"):
            serve_until_done(line)

    def test_gives_signs_of_life_until_it_is_done(self, connect, lively):
        line, other = connect("chief", 0)
        serving = background(serve_until_done, line)
        assert [other.next() for _ in range(3)] == ["ping"] * 3
        other.say("done")
        other.socket.shutdown(socket.SHUT_WR)
        serving.result(DEADLINE)


def test_a_process_ends_at_once_also_while_its_main_thread_waits():
    code = """
import threading
from tf2dist import lifeline
print("before", end="")
threading.Thread(target=lifeline._end_process, args=("ps 0 is gone",)).start()
threading.Event().wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "before", "tf2dist: ps 0 is gone\n")


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
            Lifeline(near if name == "ps" else pair[0], Task(name, 0), "here").hang_up()
        for end in (mapped, *far):
            end.settimeout(DEADLINE)
            assert end.recv(1) == b""
        for here, there in ((other, stack.enter_context(elsewhere.accept()[0])), pair):
            here.sendall(b"x")
            assert there.recv(1) == b"x"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_is_missed_at_once(signum):
    code = """
import socket, sys
from tf2dist.cluster import Task
from tf2dist.lifeline import Lifeline, serve_until_done
serve_until_done(Lifeline(socket.socket(fileno=int(sys.argv[1])), Task("chief", 0), "here"))
"""
    near, far = socket.socketpair()
    with near, far:
        command = [sys.executable, "-c", code, str(far.fileno())]
        with subprocess.Popen(command, pass_fds=[far.fileno()]) as process:
            far.close()
            asked: Future = Future()
            Lead([Lifeline(near, Task("ps", 0), "there")], fatal=lambda lost: asked.set_result(list(lost)))
            os.kill(process.pid, signum)
            assert asked.result(DEADLINE) == [Task("ps", 0)]
            assert process.wait(DEADLINE) == -signum
