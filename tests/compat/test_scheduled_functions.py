"""What a coordinator does after a function that it has scheduled failed, and how those that run are ended or left."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.programs import __name__ as PROGRAMS

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def printed(whose):
    """What `tests.programs.cancelled` prints."""
    command = [sys.executable, "-m", f"{PROGRAMS}.cancelled", whose]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_upstream_gives_an_error_to_the_next_function_too():
    """Fails when `tf2dist.compat.scheduled_functions` needs no longer forget it."""
    assert printed("theirs") == ["InvalidArgumentError", "InvalidArgumentError"]


def test_functions_are_ended_and_their_errors_forgotten():
    """The one that never ends, and the one that waits behind it; then one that nobody waits for."""
    assert printed("ours") == [
        "InvalidArgumentError",
        "0",
        "1",
        "None 0",
        "set() True 0",
        "CancelledError CancelledError",
        "1",
        "InvalidArgumentError 200000 1",
        "{0}",
    ]


def test_of_a_coordinator_that_was_made_before_nothing_is_known(tf):
    """A user's own strategy and coordinator: then all functions are waited for."""
    from tensorflow.python.distribute.coordinator import cluster_coordinator

    from tf2dist.compat import scheduled_functions

    queue = cluster_coordinator._CoordinatedClosureQueue()
    coordinator = SimpleNamespace(_cluster=SimpleNamespace(closure_queue=queue))
    assert scheduled_functions.idle_workers(coordinator) == set()
    scheduled_functions.abandon(coordinator, object())
