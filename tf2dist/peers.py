"""Processes that train in lockstep: who they are, and how they agree on numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def of(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """How many peers train in lockstep, and the rank of this one (a chief comes first)."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1, 0
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec().as_dict()
    chiefs = len(spec.get("chief", ()))
    rank = resolver.task_id if resolver.task_type == "chief" else chiefs + resolver.task_id
    return max(1, chiefs + len(spec.get("worker", ()))), rank


def sum(strategy: tf.distribute.Strategy, totals: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Sums totals over all peers in one collective, so that every peer logs, and decides, the same. In a graph."""
    peers, _ = of(strategy)
    flat = tf.concat([tf.reshape(tf.cast(t, tf.float32), [-1]) for t in totals], 0)
    flat /= strategy.num_replicas_in_sync // peers  # each replica of a peer brings the whole peer's sum

    def reduce(values):
        here = tf.identity(values)  # on the replica's device: the collective asks where its input is
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

    flat = strategy.experimental_local_results(strategy.run(reduce, args=(flat,)))[0]
    pieces = tf.split(flat, [t.shape.num_elements() for t in totals])
    return [tf.cast(tf.reshape(p, t.shape), t.dtype) for p, t in zip(pieces, totals, strict=True)]


def from_first(strategy: tf.distribute.Strategy, values: Sequence) -> list[np.ndarray]:
    """The first peer's values, in every peer; all must call it, with values of the same shapes and dtypes."""
    values = [np.asarray(v) for v in values]
    if of(strategy)[0] == 1:
        return values

    def first(*values):
        context = tf.distribute.get_replica_context()
        mine = context.replica_id_in_sync_group == 0
        values = [tf.where(mine, v, tf.zeros_like(v)) for v in values]
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, v) for v in values]

    @tf.function
    def exchange(values):
        return [strategy.experimental_local_results(r)[0] for r in strategy.run(first, args=tuple(values))]

    wide = [v.astype(np.int64) if v.dtype.kind in "biu" else v for v in values]
    received = exchange([tf.convert_to_tensor(v) for v in wide])
    return [r.numpy().astype(v.dtype) for r, v in zip(received, values, strict=True)]


def copy_first(strategy: tf.distribute.Strategy, variables: Sequence) -> None:
    """Gives every peer the first peer's values of Keras variables."""
    if of(strategy)[0] > 1:
        for variable, value in zip(variables, from_first(strategy, [v.numpy() for v in variables]), strict=True):
            variable.assign(value)


def exchange(strategy: tf.distribute.Strategy, data: bytes) -> list[bytes]:
    """The data of every peer, in the order of their ranks, in every peer; all must call it. Lengths may differ."""
    if of(strategy)[0] == 1:
        return [data]
    gather = _gather(strategy)
    lengths = gather(tf.constant([len(data)], tf.int64)).numpy()[:, 0]
    words = np.zeros(-(-int(lengths.max()) // 8), np.int64)  # collectives carry numbers, not bytes
    words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    parts = gather(tf.constant(words)).numpy()
    return [part.tobytes()[:length] for part, length in zip(parts, lengths, strict=True)]


@functools.cache
def _gather(strategy: tf.distribute.Strategy):
    """A function of i64[n] that returns that of every peer, i64[peers, n]."""
    replicas = strategy.num_replicas_in_sync // of(strategy)[0]  # each, and the first one brings the peer's

    def everybody(values):
        context = tf.distribute.get_replica_context()
        row = tf.one_hot(context.replica_id_in_sync_group, strategy.num_replicas_in_sync, dtype=tf.int64)[::replicas]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, row[:, tf.newaxis] * values)

    @tf.function(reduce_retracing=True)
    def gather(values):
        return strategy.experimental_local_results(strategy.run(everybody, args=(values,)))[0]

    return gather
