"""Processes that train in lockstep: who they are, and how they agree on numbers."""

from __future__ import annotations

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
