"""What peers have that is not the same is named, with who has it."""

import json

import numpy as np
import pytest

from tf2dist.runtime import collectives, peer_arguments


@pytest.fixture
def others(monkeypatch):
    """others(values, ...): each a peer behind this one, with these values."""

    def others(*values):
        peers = ["chief 0", *(f"worker {rank}" for rank in range(len(values)))]
        monkeypatch.setattr(collectives, "peers", lambda strategy: (len(peers), 0))
        monkeypatch.setattr(collectives, "peer_names", lambda strategy: peers)
        monkeypatch.setattr(
            collectives, "all_gather", lambda strategy, data: [data, *(json.dumps(v).encode() for v in values)]
        )

    return others


@pytest.mark.parametrize(
    ("theirs", "found"),
    [
        ([{"function": "fit", "steps": 5}] * 2, None),
        ([{"function": "fit", "steps": 5}, {"function": "fit", "steps": 7}],
         ("steps", "5 in chief 0 and worker 0, 7 in worker 1")),
        ([{"function": "fit", "steps": None}], ("steps", "5 in chief 0, an unknown number in worker 0")),
        ([{"function": "fit", "steps": 7}] * 4,
         ("steps", "5 in chief 0, 7 in worker 0, worker 1, worker 2 and 1 more")),
        ([{"function": "evaluate", "rows": 1}], ("function", "fit in chief 0, evaluate in worker 0")),
    ],
)  # fmt: skip
def test_what_differs(others, theirs, found):
    others(*theirs)
    assert peer_arguments.difference(None, {"function": "fit", "steps": np.int64(5)}) == found


def test_unknown_numbers_are_the_same(others):
    others({"steps": None})
    assert peer_arguments.difference(None, {"steps": None}) is None


def test_nothing_is_exchanged_without_peers(tf, monkeypatch):
    monkeypatch.setattr(collectives, "all_gather", None)
    assert peer_arguments.difference(tf.distribute.get_strategy(), {"steps": 5}) is None
