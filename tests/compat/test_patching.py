"""Patches hold for as long as a block runs, and for all blocks that overlap."""

import threading
from types import SimpleNamespace

import pytest

from tf2dist.compat.patching import Patch


def test_a_patch_holds_inside_of_its_block_only():
    owner = SimpleNamespace(call=lambda: "theirs")
    patch = Patch(owner, {"call": lambda: "ours"})
    assert owner.call() == "theirs"
    with patch.applied():
        assert owner.call() == "ours"
        assert patch.original("call")() == "theirs"
    assert owner.call() == "theirs"


def test_what_others_patch_in_between_stays():
    owner = SimpleNamespace(call=lambda: "theirs")
    patch = Patch(owner, {"call": lambda: "ours"})
    owner.call = lambda: "another's"
    with patch.applied():
        assert patch.original("call")() == "another's"
    assert owner.call() == "another's"


def test_it_is_undone_after_an_error():
    owner = SimpleNamespace(call=lambda: "theirs")
    patch = Patch(owner, {"call": lambda: "ours"})
    with pytest.raises(ZeroDivisionError), patch.applied():
        _ = 1 / 0
    assert owner.call() == "theirs"


def test_blocks_of_several_threads_overlap():
    """As replicas' threads do, which wait for each other in the middle of a step."""
    owner = SimpleNamespace(call=lambda: "theirs")
    patch = Patch(owner, {"call": lambda: "ours"})
    inside, leave = threading.Event(), threading.Event()

    def other():
        with patch.applied():
            inside.set()
            assert leave.wait(30)

    thread = threading.Thread(target=other)
    with patch.applied():
        thread.start()
        assert inside.wait(30)
    assert owner.call() == "ours"  # the other block is not over
    leave.set()
    thread.join(30)
    assert owner.call() == "theirs"
