"""What a leader and its followers make of the others' words, silence and ends."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import pytest

from tests.cluster.conftest import Policy
from tests.threads import DEADLINE, background, nobody_listens, stays, wait_until
from tf2dist.cluster import heartbeat, peer_calls, task_monitor
from tf2dist.cluster.heartbeat import TaskConnection, TaskLostError
from tf2dist.cluster.loss_policy import LossPolicy
from tf2dist.cluster.rendezvous import RendezvousError
from tf2dist.cluster.spec import Task
from tf2dist.cluster.task_monitor import FollowerMonitor, LeaderMonitor
from tf2dist.errors import Preempted

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("ended")]


class TestLead:
    def test_data_workers_are_told_also_those_that_come_later(self, lead, connect):
        lines = [connect("ps", 0), connect("data_worker", 0)]
        later, other = connect("data_worker", 0)
        found = iter([later])
        leader = lead(*lines, policy=LossPolicy(False), find_replacement=lambda task, over: next(found, None))
        leader.tell("data_worker", "dispatcher 5000")
        lines[0][1].say("ready")
        assert lines[1][1].next() == "dispatcher 5000"
        lines[1][1].end()
        assert [other.next(), other.next()] == ["go", "dispatcher 5000"]
        assert [str(task) for task in leader.lost] == ["data_worker 0"]
        other.say("ready")
        wait_until(lambda: not leader.lost)
        leader.end(together=False)

    def test_a_data_worker_that_does_not_come_back_ends_the_job(self, lead, connect, ended):
        """No pass over the data would end without it."""
        line, other = connect("data_worker", 0)
        lead(connect("ps", 0), (line, other), policy=LossPolicy(True, workers_grace=0.1))
        other.end()
        assert "it did not come back within 0.1 s" in ended.result(DEADLINE)

    def test_ready(self, lead, connect):
        lines = [connect("ps", 0), connect("worker", 0), connect("worker", 1)]
        leader = lead(*lines)
        waiting = background(leader.wait_ready, DEADLINE)
        for _, other in lines[::-1]:
            assert not waiting.done()
            other.say("ready")
        waiting.result(DEADLINE)

    def test_ready_waits_for_all(self, lead, connect):
        lines = [connect("ps", 0), connect("worker", 0)]
        lines[0][1].say("ready")
        leader = lead(*lines)
        assert leader._ready[Task("ps", 0)].wait(DEADLINE)
        with pytest.raises(RendezvousError, match=r"worker 0 at worker0:2222 did not start its server within 0\.1 s"):
            leader.wait_ready(0.1)

    def test_a_task_that_ends_before_it_is_ready_is_not_waited_for(self, lead, connect):
        lines = [connect("ps", 0), connect("worker", 0)]
        waiting = background(lead(*lines, fatal=bool).wait_ready, 10 * DEADLINE)
        lines[0][1].say("ready")
        lines[1][1].end()
        with pytest.raises(TaskLostError, match="worker 0 at worker0:2222 is gone"):
            waiting.result(DEADLINE)

    def test_a_worker_that_is_lost_before_it_is_ready_may_come_back(self, lead, connect):
        lines, back = [connect("ps", 0), connect("worker", 0)], connect("worker", 0)
        found = iter([back[0]])
        leader = lead(*lines, policy=LossPolicy(True), find_replacement=lambda task, over: next(found, None))
        waiting = background(leader.wait_ready, 10 * DEADLINE)
        lines[0][1].say("ready")
        lines[1][1].end()
        assert back[1].next() == "go"
        assert not waiting.done()
        back[1].say("ready")
        waiting.result(DEADLINE)

    def test_a_worker_that_is_lost_before_it_is_ready_and_stays_away_is_named(self, lead, connect):
        lines = [connect("worker", 0), connect("worker", 1)]
        leader = lead(*lines, policy=LossPolicy(True))
        lines[0][1].say("ready")
        lines[1][1].end()
        wait_until(lambda: leader.lost)
        why = "it ended before the job began, and did not come back within 0.1 s"
        with pytest.raises(TaskLostError, match=f"worker 1 at worker1:2222 is gone: {why}"):
            leader.wait_ready(0.1)

    def test_gives_signs_of_life(self, lead, connect, lively):
        lines = [connect("ps", 0), connect("worker", 0)]
        leader = lead(*lines)
        for _, other in lines:
            assert [other.next() for _ in range(3)] == ["ping"] * 3
        leader.end(together=False)

    def test_a_coordinator_ends_when_it_has_finished(self, lead, connect):
        lines = [connect("ps", 0), connect("worker", 0)]
        leader = lead(*lines)
        leader.end(together=False)
        assert [other.next() for _, other in lines] == ["done", "done"]

    def test_a_task_that_was_asked_to_stop_has_an_answer(self, lead, connect):
        """It is needed until the job has saved; or it is not, and may end at once."""
        lines, told = [connect("ps", 0), connect("worker", 0)], []

        def ends(why):
            told.append(why)
            return "ps" in why

        leader = lead(*lines, on_preempted=ends)
        (_, server), (_, worker) = lines
        server.say("preempt")
        assert server.next() == "accept"
        worker.say("preempt")
        assert worker.next() == "refuse"
        assert told == [f"{name} 0 at {name}0:2222 was asked to stop" for name in ("ps", "worker")]
        leader.end(together=False, status=75)
        assert [other.next() for _, other in lines] == ["done 75", "done 75"]

    def test_a_worker_that_was_asked_to_stop_leaves_where_enough_are_left(self, lead, connect):
        lines, told = [connect("worker", 0), connect("worker", 1), connect("ps", 0)], []
        workers = frozenset(Task("worker", index) for index in range(3))  # one is not there
        policy = LossPolicy(True, workers, fewest_workers=1)
        leader = lead(*lines, policy=policy, missing=[Task("worker", 2)], on_preempted=lambda why: not told.append(why))
        lines[0][1].say("preempt")
        assert lines[0][1].next() == "refuse"
        lines[0][1].end()
        wait_until(lambda: Task("worker", 0) in leader.lost)
        lines[1][1].say("preempt")
        assert lines[1][1].next() == "accept"
        lines[2][1].say("preempt")
        assert lines[2][1].next() == "accept"
        assert told == ["worker 1 at worker1:2222 was asked to stop", "ps 0 at ps0:2222 was asked to stop"]
        leader.end(together=False)

    def test_workers_that_are_asked_to_stop_together_do_not_all_leave(self, lead, connect, capfd):
        lines, told = [connect("worker", index) for index in range(3)], []
        policy = LossPolicy(True, frozenset(Task("worker", index) for index in range(3)), fewest_workers=2)
        leader = lead(*lines, policy=policy, on_preempted=lambda why: not told.append(why))
        answers = []
        for _, other in lines:
            other.say("preempt")
            answers.append(other.next())
        assert answers == ["refuse", "accept", "accept"]
        assert len(told) == 2
        lines[0][1].end()
        wait_until(lambda: leader.lost)
        assert capfd.readouterr().err == (
            "tf2dist: worker 0 at worker0:2222 was asked to stop; the job goes on without it\n"
        )
        leader.end(together=False)

    def test_none_leaves_a_job_that_stops_as_a_whole(self, lead, connect):
        line, told = connect("worker", 0), []
        policy = LossPolicy(True, frozenset([Task("worker", 0), Task("worker", 1)]), fewest_workers=1)
        leader = lead(line, policy=policy, on_preempted=lambda why: not told.append(why))
        leader.keep_workers()
        line[1].say("preempt")
        assert line[1].next() == "accept"
        leader.end(together=False)

    def test_one_that_was_missing_joins(self, lead, connect, capfd):
        line, late = connect("worker", 0), connect("worker", 1)
        comes = threading.Event()

        def find(task, over):
            assert task == Task("worker", 1)
            assert comes.wait(DEADLINE)
            return late[0]

        leader = lead(line, missing=[Task("worker", 1)], find_replacement=find)
        line[1].say("ready")
        leader.wait_ready(DEADLINE)  # not for the other one
        assert leader.lost == [Task("worker", 1)]
        assert leader.unused == {Task("worker", 1)}
        assert leader.first_loss() == ""
        comes.set()
        assert late[1].next() == "go"
        late[1].say("ready")
        wait_until(lambda: not leader.lost)
        assert leader.unused == set()  # TensorFlow is not connected to any yet
        leader.end(together=False)
        assert [line[1].next(), late[1].next()] == ["done", "done"]
        assert capfd.readouterr().err == "tf2dist: worker 1 at worker1:2222 has joined the job\n"

    def test_one_that_ended_before_it_is_ready_is_not_waited_for_where_enough_are_left(self, lead, connect):
        lines = [connect("worker", 0), connect("worker", 1)]
        policy = LossPolicy(True, frozenset([Task("worker", 0), Task("worker", 1)]), fewest_workers=1)
        leader = lead(*lines, policy=policy)
        waiting = background(leader.wait_ready, 10 * DEADLINE)
        lines[0][1].end()
        lines[1][1].say("ready")
        waiting.result(DEADLINE)
        leader.end(together=False)

    def test_a_peer_that_has_left_something_undone_has_all_of_them_start_again(self, lead, connect):
        lines = [connect("worker", 1), connect("worker", 2)]
        leader = lead(*lines)
        ending = background(leader.end, together=True)
        lines[0][1].say("again", "bye 1")
        lines[1][1].say("bye 1")
        assert ending.result(DEADLINE) == 75
        assert [[other.next(), other.next()] for _, other in lines] == [["bye 0", "done 75"]] * 2

    def test_all_peers_are_told_that_the_job_is_to_stop(self, lead, connect):
        lines = [connect("worker", 1), connect("worker", 2)]
        leader = lead(*lines)
        leader.preempt()
        assert [other.next() for _, other in lines] == ["preempt", "preempt"]
        leader.end(together=False)

    def test_peers_end_together(self, lead, connect):
        lines = [connect("worker", 1), connect("worker", 2)]
        leader = lead(*lines)
        (_, first), (_, second) = lines
        second.say("bye")
        assert leader._bye[Task("worker", 2)].wait(DEADLINE)
        ending = background(leader.end, together=True)
        assert stays(ending)
        first.say("bye")
        ending.result(DEADLINE)
        assert [first.next(), first.next(), second.next(), second.next()] == ["bye 0", "done"] * 2

    def test_a_lost_task_that_the_job_can_do_without(self, lead, connect, ended, capfd):
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
        assert lines[1][1].next(besides=("bye 0",)) == "done"
        lost = "worker 0 at worker0:2222 is gone: it ended before the job was done"
        assert (leader.lost, leader.first_loss()) == ([Task("worker", 0)], lost)
        assert not ended.done()
        lines[1][1].end()
        nobody_listens()
        assert capfd.readouterr().err == f"tf2dist: {lost}; the job goes on without it\n"

    def test_a_lost_task_that_the_job_cannot_do_without(self, lead, connect, ended):
        lines = [connect("ps", 0), connect("worker", 0)]
        lead(*lines, fatal=lambda lost: Task("ps", 0) in lost)
        lines[0][1].end()
        assert ended.result(DEADLINE) == "ps 0 at ps0:2222 is gone: it ended before the job was done"

    def test_a_loss_counts_though_no_file_descriptor_is_left(self, lead, connect, ended, monkeypatch, capfd):
        def fail(path):
            raise OSError(errno.EMFILE, "Too many open files", path)

        lines = [connect("ps", 0)]
        lead(*lines, fatal=bool)
        monkeypatch.setattr(os, "listdir", fail)
        lines[0][1].end()
        assert ended.result(DEADLINE) == "ps 0 at ps0:2222 is gone: it ended before the job was done"
        said = "tf2dist: other connections to ps 0 at ps0:2222 are left open: Too many open files\n"
        assert capfd.readouterr().err == said

    def test_the_last_of_several_is_fatal(self, lead, connect, ended):
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

    def test_a_silent_task_is_lost(self, lead, connect, ended, hasty):
        lead(connect("ps", 0), fatal=bool)
        assert ended.result(DEADLINE) == "ps 0 at ps0:2222 has given no sign of life for 0.05 s"

    def test_a_silent_task_is_told_that_it_is_lost(self, lead, connect, ended, hasty):
        """It hears of it when it goes on."""
        connection, server = connect("ps", 0)
        lead((connection, server), fatal=bool)
        assert server.next() == "late"
        ended.result(DEADLINE)

    def test_a_silent_task_is_named_before_it_counts_as_lost(self, lead, connect, monkeypatch, capfd):
        """A stopped worker, say, whose share of a synchronous update all wait for."""
        monkeypatch.setattr(heartbeat, "SILENCE", 0.02)
        monkeypatch.setattr(task_monitor, "SILENCE", 0.02)
        worker = connect("worker", 0)
        leader = lead(worker)
        said, deadline = "", time.monotonic() + DEADLINE
        while "silent" not in said and time.monotonic() < deadline:
            said += capfd.readouterr().err
            time.sleep(0.01)
        assert said == "tf2dist: worker 0 at worker0:2222 has been silent for 0.02 s; it counts as lost after 60 s\n"
        assert leader.lost == []

    def test_a_lost_task_comes_back_and_may_be_lost_again(self, lead, connect, ended, capfd):
        lines = [connect("worker", 0), *(connect("worker", 1) for _ in range(3))]
        new = iter([line for line, _ in lines[2:]])
        asked = []

        def again(task, over):
            asked.append(task)
            return next(new, None)

        leader = lead(*lines[:2], fatal=lambda lost: len(lost) == 2, find_replacement=again)
        for line, other in lines[1:3]:
            other.end()
            back = lines[lines.index((line, other)) + 1]
            assert back[1].next() == "go"
            assert leader.lost == [Task("worker", 1)]
            assert leader.first_loss().startswith("worker 1 at worker1:2222 is gone")
            back[1].say("ready")
            wait_until(lambda: not leader.lost)
            assert leader.first_loss() == ""  # what fails now has another cause
            assert leader.connections[1] is back[0]
        leader.end(together=False)
        assert lines[3][1].next(besides=("ping",)) == "done"
        assert lines[0][1].next(besides=("ping",)) == "done"
        assert asked == [Task("worker", 1)] * 2
        assert "worker 1 at worker1:2222 is back" in capfd.readouterr().err
        assert not ended.done()

    def test_one_that_comes_back_at_the_very_end_hears_that_the_job_is_done(self, lead, connect):
        (line, other), (new, back) = connect("worker", 0), connect("worker", 0)
        looked_for, come = threading.Event(), threading.Event()

        def find(task, over):
            looked_for.set()
            return come.wait(DEADLINE) and new

        leader = lead((line, other), find_replacement=find)
        other.end()
        assert looked_for.wait(DEADLINE)
        leader.end(together=False)
        come.set()
        assert (back.next(), back.next()) == ("go", "done")

    def test_after_the_end_nobody_is_lost(self, lead, connect, ended):
        lines = [connect("worker", 0), connect("ps", 0)]
        leader = lead(*lines, fatal=lambda lost: True)
        leader.end(together=False)
        for _, other in lines:
            other.end()
        nobody_listens()
        assert (leader.lost, leader.first_loss()) == ([], "")
        assert not ended.done()


class TestAllWorkersLost:
    WORKERS = (Task("worker", 0), Task("worker", 1))

    def policy(self, grace):
        return LossPolicy(has_servers=True, workers=frozenset(self.WORKERS), workers_grace=grace)

    def test_the_job_ends_with_the_last_loss(self, lead, connect, ended, capfd):
        lines = [connect("ps", 0), connect("worker", 0), connect("worker", 1)]
        leader = lead(*lines, policy=self.policy(0.2))
        lines[2][1].end()
        wait_until(lambda: leader.lost == [Task("worker", 1)])
        lines[1][1].end()
        last = "worker 0 at worker0:2222 is gone: it ended before the job was done"
        assert ended.result(DEADLINE) == f"{last}; the workers did not come back within 0.2 s"
        lines = capfd.readouterr().err.splitlines()  # each is written by a thread of its own
        first, second = sorted(lines, key=lambda line: "no worker is left" in line)
        assert first.endswith("; the job goes on without it")
        assert second == f"tf2dist: {last}; no worker is left, the job waits 0.2 s for them to come back"

    @pytest.mark.parametrize("all_of_them", [pytest.param(True, marks=pytest.mark.slow), False])
    def test_they_come_back(self, lead, connect, ended, all_of_them):
        """One of them is enough."""
        lines = [connect("worker", 0), connect("worker", 1)]
        back = [connect("worker", 0), connect("worker", 1)][0 if all_of_them else 1 :]
        found = {other.task: other for other, _ in back}
        find = lambda task, over: found.pop(task, None)  # noqa: E731
        leader = lead(*lines, policy=self.policy(2.0), find_replacement=find)
        for _, other in lines:
            other.end()
        wait_until(lambda: len(leader.lost) == 2)
        for _, other in back:
            assert other.next() == "go"
            other.say("ready")
        wait_until(lambda: len(leader.lost) == 2 - len(back))
        assert stays(ended, 3.0)
        back[-1][1].end()
        wait_until(lambda: Task("worker", 1) in leader.lost)
        if all_of_them:  # a later loss of one of them is like any other
            leader.end(together=False)
        else:
            assert ended.result(DEADLINE).endswith("; the workers did not come back within 2 s")

    def test_one_that_is_back_is_used_once_tensorflow_is_connected_to_it(self, lead, connect, ended):
        """Whether others are lost or not."""
        lines, back, workers = [connect("worker", 0), connect("worker", 1)], connect("worker", 1), self.WORKERS
        found, changes = iter([back[0]]), []
        find = lambda task, over: next(found, None) if task.index else None  # noqa: E731
        leader = lead(*lines, policy=self.policy(DEADLINE), find_replacement=find)
        assert leader.present() == dict.fromkeys(workers, 1)
        leader.note_connected(leader.present())
        leader.on_change(lambda: changes.append(leader.present()))
        for line in lines:
            line[1].end()
        wait_until(lambda: len(changes) == 2)
        assert changes[1] == leader.present() == {}
        leader.note_connected({})
        assert back[1].next() == "go"
        back[1].say("ready")
        wait_until(lambda: len(changes) == 3)
        assert leader.present() == {Task("worker", 1): 2}
        assert leader.wait_for_change(lambda tasks: bool(tasks), DEADLINE) == leader.present()
        assert leader.unused == set(workers)
        leader.note_connected(leader.present())
        assert leader.unused == {Task("worker", 0)}
        assert not ended.done()
        leader.end(together=False)

    def test_one_that_is_lost_and_back_between_two_looks_is_another(self, lead, connect, ended):
        line, back = connect("worker", 0), connect("worker", 0)
        found = iter([back[0]])
        leader = lead(line, policy=self.policy(DEADLINE), find_replacement=lambda task, over: next(found, None))
        before = leader.present()
        leader.note_connected(before)
        line[1].end()
        assert back[1].next() == "go"
        back[1].say("ready")
        wait_until(lambda: leader.present() not in ({}, before))
        assert leader.unused == {Task("worker", 0)}
        leader.end(together=False)

    def test_the_end_of_the_job_ends_the_wait(self, lead, connect, ended):
        line = connect("worker", 0)
        policy = LossPolicy(has_servers=True, workers=frozenset([Task("worker", 0)]), workers_grace=10 * DEADLINE)
        leader = lead(line, policy=policy)
        line[1].end()
        wait_until(lambda: leader.lost)
        leader.end(together=False)
        nobody_listens()
        assert not ended.done()


class TestFollow:
    def test_leaves_with_the_others(self, connect, ended):
        line, other = connect("worker", 0)
        follow = FollowerMonitor(line, ended.set_result)
        ending = background(follow.end)
        assert other.next() == "bye 0"
        assert stays(ending)
        other.say("ping", "done")
        assert ending.result(DEADLINE) == 0
        assert not ended.done()

    def test_leaves_something_undone(self, connect, ended):
        line, other = connect("worker", 0)
        ending = background(FollowerMonitor(line, ended.set_result).end, 75)
        assert [other.next(), other.next()] == ["again", "bye 0"]
        other.say("done 75")
        assert ending.result(DEADLINE) == 75

    def test_gives_signs_of_life(self, connect, lively, ended):
        line, other = connect("worker", 0)
        follow = FollowerMonitor(line, ended.set_result)
        assert [other.next() for _ in range(3)] == ["ping"] * 3
        other.say("done")
        follow.end()

    def test_tells_the_leader_and_hears_from_it_that_the_job_is_to_stop(self, connect, ended):
        line, other = connect("worker", 0)
        told: Future = Future()
        follow = FollowerMonitor(line, ended.set_result, told.set_result)
        follow.preempt()
        assert other.next() == "preempt"
        other.say("preempt", "done")
        assert told.result(DEADLINE) == "worker 0 at worker0:2222 says that the job was asked to stop"
        follow.end()

    def test_tells_the_leader_that_it_stands_still(self, connect, ended):
        line, other = connect("worker", 0)
        follow = FollowerMonitor(line, ended.set_result)
        telling = background(follow.tell_of_stall, DEADLINE)
        assert other.next() == "stalled"
        assert stays(telling)
        other.say("ask")
        assert telling.result(DEADLINE)
        assert other.next() == "state 0 0 0 0"
        other.say("done")
        follow.end()

    def test_a_leader_that_has_asked_a_moment_before(self, connect, ended):
        """It stalled at the same moment, decides by that answer, and does not ask again."""
        line, other = connect("worker", 0)
        follow = FollowerMonitor(line, ended.set_result)
        other.say("ask")
        assert other.next() == "state 0 0 0 0"
        assert follow.tell_of_stall(DEADLINE)
        other.say("done")
        follow.end()

    def test_a_leader_that_was_stopped_since(self, connect, ended):
        line, other = connect("worker", 0)
        follow = FollowerMonitor(line, ended.set_result)
        other.say("ask")
        assert other.next() == "state 0 0 0 0"
        time.sleep(0.2)
        assert not follow.tell_of_stall(0.1)
        other.say("done")
        follow.end()

    def test_ends_when_the_leader_has(self, connect, ended):
        line, other = connect("worker", 0)
        follow = FollowerMonitor(line, ended.set_result)
        assert follow.first_loss() == ""
        other.end()
        assert ended.result(DEADLINE) == "worker 0 at worker0:2222 is gone: it ended before the job was done"
        assert follow.first_loss() == ended.result()

    def test_ends_when_the_leader_ends_while_it_is_waited_for(self, connect, ended):
        line, other = connect("worker", 0)
        background(FollowerMonitor(line, ended.set_result).end)
        assert other.next() == "bye 0"
        other.end()
        assert "worker 0 at worker0:2222 is gone" in ended.result(DEADLINE)


NEEDED = "worker 1 at worker1:2222 has ended its program, and call {} of fit, evaluate, predict or map_reduce needs it"


class TestPeerCalls:
    """A peer that has ended its program, as by `sys.exit`, is missed by those that wait for it in a call."""

    @pytest.fixture(params=["lead", "follow"])
    def peer(self, request, connect, lead, end):
        """Calls of a peer, the other end, and the words in which its loss is told."""
        line, other = connect("worker", 1)
        monitor = lead((line, other), fatal=bool) if request.param == "lead" else FollowerMonitor(line, end)
        return monitor.calls, other

    def test_it_ends_while_this_one_is_in_a_call(self, peer, ended):
        calls, other = peer
        with calls.one():
            pass
        with calls.one():
            other.say("bye 1")
            assert ended.result(DEADLINE) == NEEDED.format(2)

    def test_it_has_ended_when_this_one_begins_a_call(self, peer, ended):
        calls, other = peer
        other.say("bye 0")
        wait_until(lambda: calls._ended)
        assert not ended.done()
        with calls.one():
            assert ended.result(DEADLINE) == NEEDED.format(1)

    def test_it_ends_after_as_many_calls(self, peer, ended):
        """Also if one of them has raised an exception, as it does in every peer."""
        calls, other = peer
        with pytest.raises(ValueError, match="refused"), calls.one():
            raise ValueError("refused")
        with calls.one():
            other.say("bye 2", "ping")
            wait_until(lambda: calls._ended)
        assert stays(ended)
        assert calls.made == 2

    def test_it_leaves_a_call_by_an_exception_in_which_this_one_waits(self, peer, ended, monkeypatch):
        """It may also do so before this one begins the call. In a callback, say, this one waits for nobody."""
        monkeypatch.setattr(peer_calls, "_LOOK_SECONDS", 0.02)
        monkeypatch.setattr(peer_calls, "GRACE", 0.2)
        calls, other = peer
        other.say("raised 2")
        with calls.one():
            assert stays(ended)
        waits = threading.Event()
        with calls.one(waits.is_set):
            assert stays(ended)
            waits.set()
            assert ended.result(DEADLINE) == (
                "worker 1 at worker1:2222 has left call 2 of fit, evaluate, predict or map_reduce by an exception, and "
                "this task waits in it"
            )

    def test_it_leaves_a_call_by_an_exception_and_ends_while_this_one_prepares_it(self, peer, ended, monkeypatch):
        monkeypatch.setattr(peer_calls, "_LOOK_SECONDS", 0.02)
        monkeypatch.setattr(peer_calls, "GRACE", 0.2)
        calls, other = peer
        with calls.one(lambda: False):
            other.say("raised 1")
            assert stays(ended)
            other.say("bye 1")
            assert "has left call 1 of fit" in ended.result(DEADLINE)

    def test_both_leave_a_call_by_an_exception(self, peer, ended, monkeypatch):
        monkeypatch.setattr(peer_calls, "_LOOK_SECONDS", 0.02)
        monkeypatch.setattr(peer_calls, "GRACE", 0.2)
        calls, other = peer
        other.say("raised 1")
        with pytest.raises(ValueError, match="refused"), calls.one():
            raise ValueError("refused")
        assert other.next() == "raised 1"
        with calls.one():
            assert stays(ended)

    def test_an_exit_inside_of_a_call_does_not_count(self, peer):
        calls, _ = peer
        with pytest.raises(SystemExit), calls.one():
            sys.exit(3)
        assert calls.made == 0

    def test_a_call_that_ends_since_the_job_was_preempted(self, peer, ended):
        """All peers end it, so nobody misses one that has left before."""
        calls, other = peer
        with pytest.raises(Preempted), calls.one():
            raise Preempted
        assert calls.made == 1
        other.say("bye 1")
        with calls.one():
            assert "call 2" in ended.result(DEADLINE)

    def test_a_call_that_a_signal_to_this_peer_alone_ends(self, peer):
        """The others are inside of it, and must not wait for this one."""
        calls, _ = peer
        with pytest.raises(Preempted), calls.one():
            raise Preempted(alone=True)
        assert calls.made == 0

    def test_all_exit_inside_of_a_call(self, peer, ended):
        """As by `sys.exit` in a callback of each: none of them waits any more."""
        calls, other = peer
        with pytest.raises(SystemExit), calls.one():
            sys.exit(0)
        other.say("bye 0")
        wait_until(lambda: calls._ended)
        assert stays(ended)

    def test_calls_inside_of_calls(self, peer, ended):
        """As a callback's: the other peer ends after the inner one, inside of `fit`."""
        calls, other = peer
        with calls.one():
            with calls.one():
                pass
            other.say("bye 1")
            assert ended.result(DEADLINE) == NEEDED.format(2)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_is_missed_at_once(signum):
    code = """
import socket, sys
from tf2dist.cluster import Task
from tf2dist.cluster import heartbeat, task_monitor
from tf2dist.cluster.heartbeat import TaskConnection, wait_until_done
wait_until_done(TaskConnection(socket.socket(fileno=int(sys.argv[1])), Task("chief", 0), "here"))
"""
    near, far = socket.socketpair()
    with near, far:
        command = [sys.executable, "-c", code, str(far.fileno())]
        with subprocess.Popen(command, pass_fds=[far.fileno()]) as process:
            far.close()
            asked: Future = Future()
            LeaderMonitor(
                [TaskConnection(near, Task("ps", 0), "there")], Policy(lambda lost: asked.set_result(list(lost))), print
            )
            os.kill(process.pid, signum)
            assert asked.result(DEADLINE) == [Task("ps", 0)]
            assert process.wait(DEADLINE) == -signum
