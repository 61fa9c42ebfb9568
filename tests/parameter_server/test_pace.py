"""How long to wait for an execution."""

import math

from tf2dist.parameter_server.pace import Pace


def test_the_first_execution_is_waited_for():
    assert Pace().next_limit(5) == math.inf


def test_the_limit_follows_the_steps_of_most():
    pace = Pace()
    for seconds in (2.0, 2.0, 40.0):
        pace.observe(4, seconds)
    assert pace.next_limit(6) == 4 * 6 * 0.5


def test_short_executions_are_waited_for_all_the_same():
    pace = Pace()
    pace.observe(100, 0.01)
    assert pace.next_limit(1) == 1.5


def test_the_limit_doubles_until_one_has_made_its_steps():
    pace = Pace()
    pace.observe(1, 1.0)
    assert [pace.next_limit(1) for _ in range(4)] == [4.0, 8.0, 16.0, 32.0]
    pace.observe(1, 1.0)
    assert pace.next_limit(1) == 4.0
