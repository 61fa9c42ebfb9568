"""When a process takes its job to stand still."""

import threading
import time
from concurrent.futures import Future

import pytest
import tensorflow as tf

from tests.threads import DEADLINE, stays
from tf2dist.cluster.loss_policy import LossPolicy
from tf2dist.cluster.stall_diagnosis import Progress
from tf2dist.cluster.task_monitor import LeaderMonitor
from tf2dist.errors import UsageError
from tf2dist.runtime import session
from tf2dist.runtime.stall_timeout import StallWatch

pytestmark = pytest.mark.timeout(60)
LIMIT = 1.0


@pytest.fixture
def watched():
    """watched(): the progress of a process that is watched, and what it ends with."""
    over = threading.Event()

    def start():
        progress, ended = Progress(), Future()

        def end(why):
            ended.done() or ended.set_result(why)
            over.wait(10 * DEADLINE)  # as who ends the process does not return

        StallWatch(LIMIT, "this process", progress, end, None)
        return progress, ended

    yield start
    over.set()


def test_a_call_that_makes_no_step_any_more(watched):
    progress, ended = watched()
    with progress.call():
        progress.made()
        why = ended.result(DEADLINE)
    assert why.startswith("the job has made no step for 1 s, and waits for a callback or another part of the program")


@pytest.mark.slow
def test_steps_start_the_time_anew(watched):
    progress, ended = watched()
    with progress.call():
        for _ in range(15):
            progress.made()
            assert stays(ended, LIMIT / 5)


@pytest.mark.slow
def test_outside_of_calls_nothing_is_to_be_made(watched):
    _, ended = watched()
    assert stays(ended, 3 * LIMIT)


@pytest.mark.slow
def test_a_trace_moves(watched):
    """It is in other places all the time, though no step is made; one that stays where it is stalls."""
    progress, ended = watched()

    def traced(seconds):
        deadline, number = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            number += 1
            below(number % 50)
        if seconds:
            return traced(0)
        return ended.result(DEADLINE)

    def below(depth):
        below(depth - 1) if depth else time.sleep(0.001)

    with progress.call():
        progress.made()
        function = tf.function(lambda: tf.constant(traced(5 * LIMIT)))
        began = time.monotonic()
        assert b"no step" in function().numpy()
        assert time.monotonic() - began > 5 * LIMIT


@pytest.mark.slow
def test_a_trace_of_slow_layers_moves(watched):
    """Each of them stays where it is for a part of the limit."""
    progress, ended = watched()

    def traced():
        for line in range(4):
            below(line)
        return "moved" if stays(ended, 0.1) else "ended"

    def below(depth):
        below(depth - 1) if depth else time.sleep(0.6 * LIMIT)

    with progress.call():
        progress.made()
        assert tf.function(lambda: tf.constant(traced()))().numpy() == b"moved"


@pytest.mark.slow
def test_a_trace_that_comes_back_to_its_places_stands_still(watched):
    progress, ended = watched()

    def traced():
        number = 0
        while not ended.done():
            number += 1
            below(number % 3)
        return ended.result()

    def below(depth):
        below(depth - 1) if depth else time.sleep(0.2 * LIMIT)

    with progress.call():
        progress.made()
        assert b"no step" in tf.function(lambda: tf.constant(traced()))().numpy()


@pytest.mark.slow
def test_a_trace_that_stays_where_it_is_while_other_threads_move(watched):
    progress, ended = watched()
    over = threading.Event()

    def move():
        while not over.wait(0.001):
            time.sleep(0.001)

    other = threading.Thread(target=move)
    other.start()
    try:
        with progress.call():
            progress.made()
            assert b"no step" in tf.function(lambda: tf.constant(ended.result(DEADLINE)))().numpy()
    finally:
        over.set()
        other.join()


def test_the_wait_for_workers_has_a_limit_of_its_own():
    monitor, progress, ended = LeaderMonitor([], LossPolicy(has_servers=True), lambda why: None), Progress(), Future()
    monitor.waits_for_workers = True
    StallWatch(LIMIT / 4, "this process", progress, ended.set_result, monitor)
    with progress.call():
        progress.made()
        assert stays(ended, LIMIT)
        monitor.waits_for_workers = False
        assert "no step" in ended.result(DEADLINE)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "first_step"), [(0.9, False), (2.0, True)])
def test_what_another_peer_says_ends_nothing_that_moves(limit, first_step):
    """Steps are made, with a limit below a whole second; or a first step is under way, which may take longer."""
    monitor, progress, ended = LeaderMonitor([], LossPolicy(has_servers=False), lambda why: None), Progress(), Future()
    StallWatch(limit, "this process", progress, ended.set_result, monitor)
    with progress.call():
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            if not first_step:
                progress.made()
            monitor._on_stalled()
            assert stays(ended, 0.02)
        if first_step:
            assert "made no step for" in ended.result(DEADLINE)


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan", "1e999"])
def test_wrong_seconds(monkeypatch, text):
    monkeypatch.setenv("TF2DIST_STALL_TIMEOUT", text)
    with pytest.raises(UsageError, match=f"TF2DIST_STALL_TIMEOUT is '{text}'; it must be a number of seconds, or 0"):
        session.join("one")


def test_wrong_seconds_of_an_argument():
    with pytest.raises(UsageError, match="stall_timeout is -1; it must be a number of seconds, or 0 for never"):
        session.join("one", stall_timeout=-1)
