"""How long to wait for an execution."""

import math

from tf2dist.parameter_server.execution_timeout import ExecutionTimeout


def test_the_first_execution_is_waited_for():
    assert ExecutionTimeout().next(5) == math.inf


def test_or_for_as_long_as_one_says():
    timeout = ExecutionTimeout(first=10.0)
    assert [timeout.next(1), timeout.next(1)] == [10.0, 20.0]


def test_the_timeout_follows_the_steps_of_most():
    timeout = ExecutionTimeout(first=10.0)
    for seconds in (2.0, 2.0, 40.0):
        timeout.observe(4, seconds)
    assert timeout.next(6) == 4 * 6 * 0.5


def test_short_executions_are_waited_for_all_the_same():
    timeout = ExecutionTimeout()
    timeout.observe(100, 0.01)
    assert timeout.next(1) == 1.5


def test_the_timeout_doubles_until_one_has_made_its_steps():
    timeout = ExecutionTimeout()
    timeout.observe(1, 1.0)
    assert [timeout.next(1) for _ in range(4)] == [4.0, 8.0, 16.0, 32.0]
    timeout.observe(1, 1.0)
    assert timeout.next(1) == 4.0
