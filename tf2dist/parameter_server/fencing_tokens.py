"""Fencing tokens: each execution makes its steps once, though TensorFlow runs it again when its worker dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

_GENERATION = 1 << 32  # more than any place is used between two that are revoked


@dataclass(frozen=True)
class Token:
    """What an execution is scheduled with.

    Attributes:
      place: of its count, among those on the server.
      count: the count before the execution begins.
      steps: that the execution is to make.
    """

    place: int
    count: int
    steps: int

    def tensor(self) -> tf.Tensor:
        """The token as i64[3], for the worker."""
        return tf.constant([self.place, self.count, self.steps], tf.int64)


class FencingTokens:
    """Counts on a parameter server how often each execution has begun: the first time it makes its steps, then none.

    So executions may begin in any order, and one that is run again makes no steps, whether the worker that ran it
    before is dead or was only taken for dead. A token can be revoked while it is in use: no step is made with it any
    more, however long the worker was stopped. (Fencing tokens: M. Kleppmann, "Designing Data-Intensive Applications",
    2017, chapter 8.)

    Args:
      strategy: whose servers hold the counts.
      capacity: executions that may be under way at once.
      beside: a variable on the server that is to hold them.
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, capacity: int, beside: tf.Variable):
        with strategy.scope(), strategy.extended.colocate_vars_with(beside):
            # The higher half of a count says how often its place was revoked, the lower half how often an execution
            # has begun since.
            self._counts = tf.Variable(tf.zeros([capacity], tf.int64), trainable=False, name="fencing_tokens")
        self._free = dict.fromkeys(range(capacity), 0)  # counts, by place; the first was used longest ago
        self._used: dict[int, Token] = {}
        self._revoked = 0

    def issue(self, steps: int) -> Token:
        """A token for `steps` steps."""
        place = next(iter(self._free))
        self._used[place] = token = Token(place, self._free.pop(place), steps)
        return token

    def give_back(self, token: Token, count: int) -> None:
        """The execution is over. `count` is what `take` has returned in it, or the token's own if it never began."""
        if self._used.get(token.place) is token:
            del self._used[token.place]
            self._free[token.place] = count

    def revoke(self, tokens: Sequence[Token]) -> None:
        """Of what still runs with these tokens, no step is valid any more; they are given back."""
        tokens = [token for token in tokens if self._used.get(token.place) is token]
        if not tokens:
            return
        self._revoked += 1
        count = self._revoked * _GENERATION
        self._counts.scatter_nd_update([[t.place] for t in tokens], np.full(len(tokens), count))
        for token in tokens:
            self.give_back(token, count)

    def take(self, token: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Takes a token i64[3]; returns the steps i64[] to make, 0 if it was taken before, and the count i64[].

        In a graph on the worker, which exchanges one message with the server each way. The third is the token on the
        server, for `is_valid`.
        """
        with tf.device(self._counts.device):
            place, before, steps = tf.unstack(tf.identity(token))
            held = tf.stack([place, before // _GENERATION])
            added = tf.raw_ops.ResourceScatterNdAdd(
                ref=self._counts.handle, indices=place[tf.newaxis, tf.newaxis], updates=tf.ones([1], tf.int64)
            )
            with tf.control_dependencies([added]):
                # Where it runs twice at the same time, both may find that it was taken twice, and none makes the
                # steps: they count as lost. Never both find that it was taken once.
                count = self._count(place)
            answer = tf.stack([tf.where(count == before + 1, steps, tf.zeros_like(steps)), count])
        steps, count = tf.unstack(tf.identity(answer))
        return steps, count, held

    def is_valid(self, held: tf.Tensor) -> tf.Tensor:
        """Was the token, the third that `take` returned, not revoked since? bool[]. In a graph, on the server."""
        with tf.device(self._counts.device):
            place, generation = tf.unstack(held)
            return self._count(place) // _GENERATION == generation

    def _count(self, place: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.ResourceGather(resource=self._counts.handle, indices=place, dtype=tf.int64)
