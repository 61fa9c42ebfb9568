import itertools

import pytest

from tf2dist.execution import steps_per_execution
from tf2dist.execution.steps_per_execution import StepsPerExecutionTuner

BOTH = pytest.mark.parametrize("fixed", [None, 7])


def settled(seconds_a_step, times=40, in_flight=1):
    """A pace after many executions that took as long as their steps say, and the lengths that it chose."""
    chosen = []
    found = StepsPerExecutionTuner()
    for _ in range(times):
        steps = found.next(10**9, in_flight)
        chosen.append(steps)
        found.observe(steps, steps * seconds_a_step)
    return chosen


def test_the_first_execution_is_one_step_and_says_nothing():
    found = StepsPerExecutionTuner()
    assert found.next(1000) == 1
    found.observe(1, 60.0)  # with tracing
    assert found.next(1000) == 1
    found.observe(1, 0.001)
    assert found.next(1000) == 2


def test_grows_at_most_twofold_to_the_time_it_aims_at():
    chosen = settled(0.001)
    assert all(after <= 2 * before for before, after in itertools.pairwise(chosen))
    assert chosen[-1] == pytest.approx(steps_per_execution._TARGET_SECONDS / 0.001, abs=1)


@pytest.mark.parametrize(("in_flight", "seconds"), [(1, 0.4), (32, 0.4), (128, 1.28), (2000, 3.0)])
def test_workers_that_are_many_have_longer_executions(in_flight, seconds):
    """So that what one process hands out does not grow with them; and they are as patient."""
    assert settled(0.01, in_flight=in_flight)[-1] == pytest.approx(100 * seconds, abs=1)
    found = StepsPerExecutionTuner()
    found.next(1000, in_flight)
    assert found.limit == pytest.approx(2 * seconds)


def test_is_bounded():
    assert settled(1e-9)[-1] == steps_per_execution._MAX_STEPS
    assert set(settled(60.0)) == {1}


def test_shrinks_at_once():
    found = StepsPerExecutionTuner()
    for _ in range(20):
        found.observe(100, 0.01)
    assert found.next(10**9) > 1000
    found.observe(100, 100 * steps_per_execution._TARGET_SECONDS)
    assert found.next(10**9) == 1


def test_a_clock_that_stands_still_teaches_nothing():
    found = StepsPerExecutionTuner()
    for _ in range(5):
        found.observe(1, 0.0)
    assert found.next(1000) == 1


def test_a_fixed_length_stays():
    found = StepsPerExecutionTuner(7)
    assert found.next(1000) == 7
    for _ in range(5):
        found.observe(7, 1e-6)
    assert found.next(1000) == 7
    assert found.next(1000, in_flight=500) == 7


@BOTH
@pytest.mark.parametrize("left", [0, 1, 3, 6, 7, 8])
def test_never_more_than_is_left(fixed, left):
    found = StepsPerExecutionTuner(fixed)
    for _ in range(10):
        found.observe(10, 1e-6)
    assert 0 <= found.next(left) <= left
    assert (found.next(left) > 0) == (left > 0)


@BOTH
@pytest.mark.parametrize("workers", [1, 2, 3, 6, 50])
def test_every_step_is_run_once_whatever_the_workers(fixed, workers):
    found = StepsPerExecutionTuner(fixed)
    left, total = 1000, 0
    while left:
        steps = found.next(left, workers)
        found.observe(steps, steps * 1e-4)
        left, total = left - steps, total + steps
    assert total == 1000


def test_the_last_steps_are_spread_over_the_workers():
    found = StepsPerExecutionTuner()
    for _ in range(20):
        found.observe(100, 100 * steps_per_execution._MIN_SECONDS / 5)
    assert found.next(60, in_flight=6) == 10
    assert found.next(20, in_flight=6) == 5  # not cut into what takes no time
    assert found.next(3, in_flight=6) == 3


@pytest.mark.parametrize("steps", [0, -1])
def test_a_length_that_is_none(steps):
    with pytest.raises(ValueError, match=f"at least 1, found {steps}"):
        StepsPerExecutionTuner(steps)
