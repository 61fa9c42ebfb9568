"""Whether all peers of a multi-worker job were given the same: one that makes more steps would wait for ever."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import json
from collections.abc import Mapping

import tensorflow as tf

from tf2dist.cluster.task_names import listed
from tf2dist.runtime import collectives

_NAMED = 3  # peers that are named of those that have one value


def difference(strategy: tf.distribute.Strategy, values: Mapping[str, str | int | None]) -> tuple[str, str] | None:
    """Compares values in all peers, which must call it together; an exchange of some bytes, and none without peers.

    Args:
      values: by name. None is a number that is not known, which is like no number.

    Returns:
      In every peer alike: the name of the first value that is not the same in all, and who has what, as
      "5 in worker 0 and worker 1, 7 in worker 2". None if all are the same.
    """
    if collectives.peers(strategy)[0] == 1:
        return None
    sent = json.dumps({n: v if v is None or isinstance(v, str) else int(v) for n, v in values.items()}).encode()
    received = [json.loads(data) for data in collectives.all_gather(strategy, sent)]
    for name in received[0]:
        theirs = [each.get(name) for each in received]
        if any(value != theirs[0] for value in theirs):
            return name, _by_value(theirs, collectives.peer_names(strategy))
    return None


def _by_value(values: list[str | int | None], peers: list[str]) -> str:
    having: dict[str | int | None, list[str]] = {}
    for value, peer in zip(values, peers, strict=True):
        having.setdefault(value, []).append(peer)
    return ", ".join(
        f"{'an unknown number' if v is None else v} in {listed(names, _NAMED)}" for v, names in having.items()
    )
