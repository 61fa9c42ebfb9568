"""Exchanges words of a board between replicas.

Collectives have no unsigned integers, and what TensorFlow makes around them has no kernels for int64 on GPUs: it pads
what it gathers (`Pad`), and splits what it has added up (`SplitV`). Both are there for float64, which has the size of a
word: words travel as the floats with their bits, and sums as two halves, in which they are exact.
"""

from __future__ import annotations

import tensorflow as tf


def exchange(top: tf.Tensor, bottom: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns, in a replica, the rows above and below its own, u64[k, w] each; the board is a torus.

    Args:
      top, bottom: its own first and last rows, u64[k, w].
    """
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    if count == 1:
        return bottom, top
    gathered = gather(tf.stack([top, bottom])[None])  # [replicas, 2, k, w]
    gathered = tf.ensure_shape(gathered, [count, 2, *top.shape])
    mine = context.replica_id_in_sync_group
    return gathered[(mine - 1) % count, 1], gathered[(mine + 1) % count, 0]


def gather(rows: tf.Tensor) -> tf.Tensor:
    """Returns, in a replica, the rows u64[n, ...] of all replicas, one below the other."""
    context = tf.distribute.get_replica_context()
    return tf.bitcast(context.all_gather(tf.bitcast(rows, tf.float64), 0), tf.uint64)


def add(words: tf.Tensor) -> tf.Tensor:
    """Returns, in a replica, the sum of the words u64[...] over all replicas, modulo 2**64."""
    context, half = tf.distribute.get_replica_context(), tf.constant(32, tf.uint64)
    high = tf.bitwise.right_shift(words, half)
    low = words - tf.bitwise.left_shift(high, half)
    halves = tf.stack([tf.cast(tf.bitcast(part, tf.int64), tf.float64) for part in (high, low)])
    high, low = tf.unstack(context.all_reduce(tf.distribute.ReduceOp.SUM, halves))
    high, low = (tf.bitcast(tf.cast(part, tf.int64), tf.uint64) for part in (high, low))
    return tf.bitwise.left_shift(high, half) + low
