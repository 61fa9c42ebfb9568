"""What sending an array to two workers takes of the coordinator's memory."""

import pytest

from tests.jobs import run_program

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def grown(whose):
    """By how much the coordinator has grown, in sizes of the array."""
    (line,) = run_program(["--ps=1", "--workers=2"], "sent_arrays", whose).splitlines()
    array, more, total = map(int, line.split("]")[-1].split())
    assert array == total
    return more / array


def test_tensorflow_itself_holds_several_copies():
    """Fails when `tf2dist.compat.per_worker_datasets` is no longer needed."""
    assert grown("theirs") > 3


def test_ours_holds_a_few_pieces():
    assert grown("ours") < 0.9
