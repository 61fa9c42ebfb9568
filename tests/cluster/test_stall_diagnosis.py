"""What tasks say of themselves when a job makes no step, and for whom it is found to wait."""

import pytest

from tests.threads import DEADLINE, background, wait_until
from tf2dist.cluster.heartbeat import wait_until_done
from tf2dist.cluster.loss_policy import LossPolicy
from tf2dist.cluster.spec import Task
from tf2dist.cluster.stall_diagnosis import Place, Progress, State, waits_for
from tf2dist.cluster.task_monitor import FollowerMonitor, LeaderMonitor

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("ended")]

IN_STEP, BEHIND = State(1, 7, Place.STEPS, 30), State(1, 6, Place.PROGRAM, 30)
SERVES = State(0, 0, Place.SERVES, 0)


@pytest.mark.parametrize(
    ("states", "busy", "found"),
    [
        ({"a": IN_STEP, "b": None}, [], "b, which has not answered"),
        ({"a": IN_STEP, "b": BEHIND}, [], "b, which has not begun the step that the others are in"),
        ({"a": IN_STEP, "b": BEHIND._replace(place=Place.OUTSIDE)}, [], "b, which has not called fit"),
        ({"a": IN_STEP, "b": IN_STEP._replace(place=Place.INPUT)}, [], "the input of b, whose next batch has not come"),
        ({"a": BEHIND, "b": SERVES}, ["c"], "a callback or another part of the program in a"),
        ({"a": IN_STEP, "b": SERVES}, ["c"], "c, which has not returned what it runs"),
        ({"a": IN_STEP, "b": SERVES}, ["c", "d"], "c and d, which have not returned what they run"),
        ({"a": IN_STEP, "b": IN_STEP}, [], "a step that a and b have begun, or data that TensorFlow reads for it"),
        ({**{str(n): BEHIND for n in range(8)}, "a": IN_STEP}, [], "0, 1, 2, 3, 4 and 3 more, which have not begun"),
    ],
)
def test_for_whom_it_waits(states, busy, found):
    assert waits_for(states, busy).startswith(found)


def test_a_state_travels():
    state = State(3, 10**12, Place.INPUT, 5)
    word, _, numbers = state.message().partition(" ")
    assert (word, State.of(numbers)) == ("state", state._replace(steps=10**9 - 1))


def test_progress():
    now = [0.0]
    progress = Progress(lambda: now[0])
    assert progress.state() == State(0, 0, Place.OUTSIDE, 0)
    with progress.call():
        now[0] = 5.0
        assert progress.state() == State(1, 0, Place.PROGRAM, 5)
        assert progress.patience == 3  # the first step is compiled
        results = progress.steps_of(iter("ab"))
        assert next(results) == "a"
        assert progress.patience == 1
        progress.compiles(reads_again=True)
        assert progress.patience == 30
        assert progress.state() == State(1, 1, Place.PROGRAM, 0)
        with progress.steps():
            progress.waits_for_input(True)
            assert progress.state() == State(1, 2, Place.INPUT, 0)
        assert list(results) == ["b"]
        with progress.call():
            assert progress.patience == 3
        assert progress.in_call
    assert (progress.in_call, progress.state().place) == (False, Place.OUTSIDE)


def test_the_leader_asks_all_tasks(connect, ended):
    """A server answers, and logs its stacks; a task that is silent does not, and is not waited for beyond the limit."""
    lines = [connect("ps", 0), connect("worker", 0), connect("worker", 1)]
    leader = LeaderMonitor([line for line, _ in lines], LossPolicy(True), ended.set_result)
    asking = background(leader.ask, 1.0)
    for (_, other), said in zip(lines, ("state 0 0 4 0", "state 1 2", ""), strict=True):
        assert other.next() == "ask"
        other.say(said)
    names = "ps 0 at ps0:2222", "worker 0 at worker0:2222", "worker 1 at worker1:2222"
    assert asking.result(DEADLINE) == dict(zip(names, (SERVES, None, None), strict=True))
    logging = background(leader.have_stacks_logged, DEADLINE)
    for _, other in lines:
        assert other.next() == "stacks"
        other.say("dumped")
    logging.result(DEADLINE)
    leader.end(together=False)


def test_a_server_answers(connect, capfd):
    from tf2dist.cluster.stall_diagnosis import answer

    line, other = connect("chief", 0)
    serving = background(wait_until_done, line, on_request=lambda request: answer(line, request, None))
    other.say("ask", "stacks", "done")
    assert (other.next(), other.next()) == ("state 0 0 4 0", "dumped")
    other.end()
    assert serving.result(DEADLINE) == 0
    said = capfd.readouterr().err
    assert "thread MainThread:" in said
    assert "in test_a_server_answers" in said


def test_a_peer_tells_the_leader(connect, ended):
    (line, other), told = connect("worker", 1), []
    leader = LeaderMonitor([line], LossPolicy(False), ended.set_result)
    leader.on_stalled(lambda: told.append(None))
    other.say("stalled")
    wait_until(lambda: told)
    leader.end(together=False)


@pytest.mark.parametrize("answers", [True, False])
def test_a_peer_knows_whether_the_leader_has_asked(connect, ended, answers):
    line, other = connect("worker", 0)
    progress = Progress()
    follower = FollowerMonitor(line, ended.set_result, progress=progress)
    with progress.call():
        telling = background(follower.tell_of_stall, DEADLINE if answers else 0.1)
        assert other.next() == "stalled"
        if answers:
            other.say("ask")
            assert other.next() == "state 1 0 1 0"
        assert telling.result(DEADLINE) is answers
    assert follower.leader.task == Task("worker", 0)
    other.say("done")
