"""Peers that train in lockstep agree to stop after the same step, in what they exchange anyway."""

from __future__ import annotations

import tensorflow as tf

from tf2dist.runtime import session


class StopAgreement:
    """What the peers of a job tell each other in an execution: one more collective would cost more than it carries.

    Args:
      peers: how many there are.

    Attributes:
      asked_to_stop: whether a peer was asked to stop before the last execution began; each of them has found the same.
    """

    def __init__(self, peers: int):
        self._peers = peers
        self.asked_to_stop = False

    def notes(self, seconds: float) -> tf.Tensor:
        """f32[2] of this peer, to be added up over the peers: a time, and whether it was asked to stop."""
        return tf.constant([seconds, float(session.current().preemption.stops_training)])

    def take(self, notes: tf.Tensor) -> float:
        """Takes up the sum f32[2] of the peers' notes; returns the mean of their times."""
        seconds, asked = notes.numpy()
        self.asked_to_stop = bool(asked)
        return float(seconds) / self._peers
