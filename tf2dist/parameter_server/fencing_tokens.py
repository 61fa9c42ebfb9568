"""Fencing tokens: each execution makes its steps once, though TensorFlow runs it again when its worker dies."""

from __future__ import annotations

import tensorflow as tf


class FencingTokens:
    """A counter on a parameter server from which each execution takes a token that says how many steps to make.

    An execution that is run again finds that all issued tokens are taken, and makes no steps. (Fencing tokens: M.
    Kleppmann, "Designing Data-Intensive Applications", 2017, chapter 8.)

    Args:
      strategy: whose servers hold the counter.
      capacity: executions that may be under way at once.
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, capacity: int):
        with strategy.scope():
            self._taken = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="fencing_tokens")
        self._capacity = capacity
        self._sizes = [0] * capacity  # steps of token t, at t % capacity
        self._issued = 0

    def restart(self) -> None:
        """Starts counting anew. Only while no execution is under way."""
        self._taken.assign(0)
        self._issued = 0

    def issue(self, steps: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Issues a token for `steps` steps; returns the arguments of `take` for the execution: i32[capacity], i64[]."""
        self._sizes[self._issued % self._capacity] = steps
        self._issued += 1
        return tf.constant(self._sizes), tf.constant(self._issued, tf.int64)

    def take(self, sizes, issued) -> tf.Tensor:
        """Takes a token; returns the steps i32[] it is for, 0 if all that were issued are taken. On the worker."""
        # One operation on the server, unlike adding and then reading the sum.
        token = tf.raw_ops.ResourceCountUpTo(resource=self._taken.handle, limit=tf.int64.max, T=tf.int64)
        # A token that is left belongs to an execution that is under way.
        return tf.where(token < issued, sizes[token % self._capacity], 0)
