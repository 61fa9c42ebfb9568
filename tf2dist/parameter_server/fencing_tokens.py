"""Fencing tokens: each execution makes its steps once, though TensorFlow runs it again when its worker dies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

_FAR = 1 << 32  # more than any token is used


@dataclass(frozen=True)
class Token:
    """What an execution is scheduled with.

    Attributes:
      place: of its count, among those on the server.
      uses: how often executions with tokens of this place have begun before.
      steps: that the execution is to make.
    """

    place: int
    uses: int
    steps: int

    def tensor(self) -> tf.Tensor:
        """The token as i64[3], for `take`."""
        return tf.constant([self.place, self.uses, self.steps], tf.int64)


class FencingTokens:
    """Counts on a parameter server how often each execution has begun: the first time it makes its steps, then none.

    So executions may begin in any order, and one that is run again makes no steps, nor takes those of others, whether
    the worker that ran it before is dead or was only taken for dead. (Fencing tokens: M. Kleppmann, "Designing
    Data-Intensive Applications", 2017, chapter 8.)

    Args:
      strategy: whose servers hold the counts.
      capacity: executions that may be under way at once.
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, capacity: int):
        with strategy.scope():
            self._counts = tf.Variable(tf.zeros([capacity], tf.int64), trainable=False, name="fencing_tokens")
        self._free = dict.fromkeys(range(capacity), 0)  # uses, by place
        self._lost: list[int] = []  # places whose uses nobody knows
        self._begin = 0  # of the uses of places that were lost

    def issue(self, steps: int) -> Token:
        """A token for `steps` steps."""
        if self._lost:
            self._begin += _FAR  # what still runs with a token of before finds another number than it looks for
            for place in self._lost:
                self._counts.scatter_nd_update([[place]], np.array([self._begin]))
                self._free[place] = self._begin
            self._lost = []
        place = next(iter(self._free))
        return Token(place, self._free.pop(place), steps)

    def take_back(self, token: Token, uses: int | None) -> None:
        """The execution is over. `uses` is what `take` has returned in it, None if that is not known."""
        if uses is None:
            self._lost.append(token.place)
        else:
            self._free[token.place] = uses

    def take(self, token: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Uses a token i64[3]; returns the steps i64[] to make, 0 if it was used before, and its uses i64[].

        In a graph on the worker, which exchanges one message with the server.
        """
        with tf.device(self._counts.device):
            place, before, steps = tf.unstack(tf.identity(token))
            added = tf.raw_ops.ResourceScatterNdAdd(
                ref=self._counts.handle, indices=place[tf.newaxis, tf.newaxis], updates=tf.ones([1], tf.int64)
            )
            with tf.control_dependencies([added]):
                # Where it runs twice at the same time, both may find two uses, and none makes the steps: they count
                # as lost. Never both find one.
                uses = tf.raw_ops.ResourceGather(resource=self._counts.handle, indices=place, dtype=tf.int64)
            answer = tf.stack([tf.where(uses == before + 1, steps, tf.zeros_like(steps)), uses])
        steps, uses = tf.unstack(tf.identity(answer))
        return steps, uses
