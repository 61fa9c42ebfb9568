"""A peer whose script calls `sys.exit`, or catches an exception of its own: the others do not wait for it for ever."""

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("peer", "when"), [(1, "before"), (0, "inside"), (1, "map_reduce")])
def test_a_peer_exits_while_it_is_needed(by_hand, peer, when):
    job = by_hand("tests.programs.exits", str(peer), when, peers=True)
    status, error = job.ends(f"worker {1 - peer}")
    assert status == 1, error
    last = error.splitlines()[-1]
    assert last.startswith(f"tf2dist: worker {peer} at ")
    assert last.endswith("has ended its program, and call 1 of fit, evaluate, predict or map_reduce needs it")
    status, error = job.ends(f"worker {peer}")
    assert status in (1, 3), error


@pytest.mark.parametrize("peer", [0, 1])
def test_a_peer_catches_an_exception_that_the_other_one_does_not_raise(by_hand, peer):
    """The other one waits for it in a collective, and not for ever."""
    job = by_hand("tests.programs.exits", str(peer), "caught", peers=True)
    status, error = job.ends(f"worker {1 - peer}")
    assert status == 1, error
    last = error.splitlines()[-1]
    assert last.startswith(f"tf2dist: worker {peer} at ")
    assert last.endswith(
        "has left call 1 of fit, evaluate, predict or map_reduce by an exception, and this task waits in it"
    )
    status, error = job.ends(f"worker {peer}")
    assert status == 1, error
    assert f"worker {1 - peer}" in error.splitlines()[-1]


def test_a_peer_exits_after_its_last_call(by_hand):
    """Nobody needs it any more."""
    job = by_hand("tests.programs.exits", "1", "after", peers=True)
    assert job.ends("worker 0")[0] == 0
    assert job.ends("worker 1")[0] == 3
