"""Fencing tokens: each execution makes its steps once, though TensorFlow runs it again when its worker dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

_GENERATION = 1 << 32  # more than any place is used between two that are revoked


@dataclass(frozen=True)
class Token:
    """The token that an execution is scheduled with.

    Attributes:
      place: of its count, among those on the server.
      count: the count before the execution begins.
      first: number of the batch of the first step that the execution is to make.
      steps: that it is to make, on consecutive batches.
    """

    place: int
    count: int
    first: int
    steps: int

    def tensor(self) -> tf.Tensor:
        """The token as i64[4], for the worker."""
        return tf.constant([self.place, self.count, self.first, self.steps], tf.int64)


class HeldToken:
    """The token of an execution that has begun, in the graph of that execution.

    Attributes:
      first: number i64[] of the first batch.
      steps: to make i64[]; 0 if the token was taken before.
      count: i64[], for `FencingTokens.give_back`.
    """

    def __init__(
        self,
        tokens: FencingTokens,
        first: tf.Tensor,
        steps: tf.Tensor,
        count: tf.Tensor,
        place: tf.Tensor,
        revoked: tf.Tensor,
    ):
        self.first, self.steps, self.count = first, steps, count
        # On the server. What updates have in common is computed once: each operation there counts.
        self._counts, self._applied = tokens.counts, tokens.applied
        self._place, self._revoked = place, revoked  # a count of the place after the token was revoked is no smaller
        with tf.device(self._applied.device):
            self._index = place[tf.newaxis, tf.newaxis]

    def is_valid(self) -> tf.Tensor:
        """Was the token not revoked since? bool[], on the server."""
        with tf.device(self._counts.device):
            return _count(self._counts, self._place) < self._revoked

    def count_applied(self, updates) -> None:
        """Counts `updates` (an int or i32[]) of its steps as applied, on the server."""
        with tf.device(self._applied.device):
            made = tf.constant([updates], tf.int64) if isinstance(updates, int) else tf.cast(updates, tf.int64)[None]
            tf.raw_ops.ResourceScatterNdAdd(ref=self._applied.handle, indices=self._index, updates=made)


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

    Attributes:
      counts: i64[capacity]. The higher half of a count says how often its place was revoked, the lower half how often
        an execution has begun since.
      applied: i64[capacity], steps that were applied with the tokens of each place, since the beginning.
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, capacity: int, beside: tf.Variable):
        with strategy.scope(), strategy.extended.colocate_vars_with(beside):
            self.counts = tf.Variable(tf.zeros([capacity], tf.int64), trainable=False, name="fencing_tokens")
            self.applied = tf.Variable(tf.zeros([capacity], tf.int64), trainable=False, name="applied_by_token")
        self._free = dict.fromkeys(range(capacity), 0)  # counts, by place; the first was used longest ago
        self._used: dict[int, Token] = {}
        self._revoked = 0
        self._settled = [0] * capacity  # steps that were applied with tokens of each place that are given back
        self._unsettled: list[Token] = []  # that were revoked, and whose steps were not counted yet

    def issue(self, first: int, steps: int) -> Token:
        """Issues a token for `steps` steps, the first of them on batch number `first`."""
        place = next(iter(self._free))
        self._used[place] = token = Token(place, self._free.pop(place), first, steps)
        return token

    def give_back(self, token: Token, count: int, applied: int) -> None:
        """Frees the token's place once its execution is over.

        Args:
          count: what `take` has returned in it, or the token's own if it never began.
          applied: its steps.
        """
        if self._used.get(token.place) is token:
            del self._used[token.place]
            self._free[token.place] = count
            self._settled[token.place] += applied

    def revoke(self, tokens: Sequence[Token]) -> None:
        """Invalidates tokens, so that no further step is applied with them, and frees their places."""
        tokens = [token for token in tokens if self._used.get(token.place) is token]
        if not tokens:
            return
        self._revoked += 1
        count = self._revoked * _GENERATION
        self.counts.scatter_nd_update([[t.place] for t in tokens], np.full(len(tokens), count))
        for token in tokens:
            self.give_back(token, count, 0)
        self._unsettled += tokens

    def settle(self) -> list[range]:
        """Returns the numbers of batches on which no step was applied with the tokens that were revoked.

        To be called before more are issued, when the server has ended all that workers have begun.
        """
        if not self._unsettled:
            return []
        counts, left = self.applied.numpy().tolist(), []
        for token in self._unsettled:
            applied = counts[token.place] - self._settled[token.place]
            self._settled[token.place] = counts[token.place]
            left.append(range(token.first + applied, token.first + token.steps))
        self._unsettled.clear()
        return [numbers for numbers in left if numbers]

    def forget(self) -> None:
        """Invalidates all tokens of the last training, and drops its counts."""
        self.revoke(list(self._used.values()))  # one is left where an interrupt came between `issue` and its execution
        self._settled = self.applied.numpy().tolist()
        self._unsettled.clear()

    def take(self, token: tf.Tensor) -> HeldToken:
        """Takes a token i64[4]. In a graph on the worker, which exchanges one message with the server each way."""
        first = token[2]
        with tf.device(self.counts.device):
            place, before, _, steps = tf.unstack(tf.identity(token))
            generation = before // _GENERATION
            revoked = (generation + 1) * _GENERATION
            # An execution whose token was revoked before it began is not to spoil the next token of the place.
            began = tf.cast(_count(self.counts, place) // _GENERATION == generation, tf.int64)
            added = tf.raw_ops.ResourceScatterNdAdd(
                ref=self.counts.handle, indices=place[tf.newaxis, tf.newaxis], updates=began[tf.newaxis]
            )
            with tf.control_dependencies([added]):
                # Where it runs twice at the same time, both may find that it was taken twice, and none makes the
                # steps: they count as lost. Never both find that it was taken once.
                count = _count(self.counts, place)
            answer = tf.stack([tf.where(count == before + 1, steps, tf.zeros_like(steps)), count])
        steps, count = tf.unstack(tf.identity(answer))
        return HeldToken(self, first, steps, count, place, revoked)


def _count(counts: tf.Variable, place: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=counts.handle, indices=place, dtype=tf.int64)
