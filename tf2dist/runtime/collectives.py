"""Collective operations between the peers of a multi-worker job, and no-ops elsewhere.

A peer is a process that runs the training loop in lockstep with the others (strategy "multiworker"). Every peer must
call these functions in the same order. Under any other strategy there is one peer.
"""

# TensorFlow ships no types.
# pyright: strict, reportUntypedFunctionDecorator=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.runtime import session

# Of which `CollectiveGatherV2` takes all, and GPUs can pad all: it takes int64 too, for which they have no `Pad`.
_GATHERED = (tf.float16, tf.float32, tf.float64, tf.int32)
_EXTREMES = {"max": tf.reduce_max, "min": tf.reduce_min}


def peers(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Returns the number of peers and the rank of this one, from 0; the chief has rank 0."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1, 0
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec().as_dict()
    chiefs = len(spec.get("chief", ()))
    rank = resolver.task_id if resolver.task_type == "chief" else chiefs + resolver.task_id
    return max(1, chiefs + len(spec.get("worker", ()))), rank


def peer_names(strategy: tf.distribute.Strategy) -> list[str]:
    """Returns what the peers are called in the job, as "worker 0", in the order of their ranks."""
    chiefs = len(strategy.cluster_resolver.cluster_spec().as_dict().get("chief", ()))
    count = peers(strategy)[0]
    return [f"chief {rank}" if rank < chiefs else f"worker {rank - chiefs}" for rank in range(count)]


def all_reduce(
    strategy: tf.distribute.Strategy, tensors: Sequence[tf.Tensor], kinds: Mapping[int, str] | None = None
) -> list[tf.Tensor]:
    """Sums tensors over all peers in one collective. Call it inside of a `tf.function`.

    Args:
      strategy: in its cross-replica context.
      tensors: of static shapes, summed as float64, in which counts stay exact; each is this peer's sum over its own
        replicas.
      kinds: of the tensors of which not the sum is wanted, by position: "max" or "min" of all peers'.

    Returns:
      The sums, of the shapes and dtypes of `tensors`, the same in every peer.
    """
    count, rank = peers(strategy)
    kinds = kinds or {}
    sent = [_in_own_place(t, rank, count) if n in kinds else t for n, t in enumerate(tensors)]
    flat = tf.concat([tf.reshape(tf.cast(t, tf.float64), [-1]) for t in sent], 0)
    flat /= strategy.num_replicas_in_sync // count  # each replica of a peer contributes the whole peer's sum

    def reduce(values: tf.Tensor) -> tf.Tensor:
        local = tf.identity(values)  # on the replica's device: the collective runs where its input is
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, local)

    flat = strategy.experimental_local_results(strategy.run(reduce, args=(flat,)))[0]
    pieces = tf.split(flat, [t.shape.num_elements() for t in sent])
    # Sixths of a count do not always add up to it again, and a cast to integers cuts off.
    pieces = [tf.round(p) if t.dtype.is_integer else p for p, t in zip(pieces, sent, strict=True)]
    sums = [tf.cast(tf.reshape(p, t.shape), t.dtype) for p, t in zip(pieces, sent, strict=True)]
    return [_EXTREMES[kinds[n]](each, 0) if n in kinds else each for n, each in enumerate(sums)]


def _in_own_place(tensor: tf.Tensor, rank: int, count: int) -> tf.Tensor:
    """The tensor in this peer's row of [peers, ...], and zeros in those of the others."""
    return tf.stack([tensor if n == rank else tf.zeros_like(tensor) for n in range(count)])


def gather(strategy: tf.distribute.Strategy, rows: Any) -> tf.Tensor:
    """Returns the rows of all replicas of all peers, in the order of replicas. Call it inside of a `tf.function`.

    Args:
      strategy: in its cross-replica context.
      rows: what its `run` has returned: numbers or booleans [n, ...] of each replica; `n` may differ.
    """
    dtype = strategy.experimental_local_results(rows)[0].dtype
    if dtype not in _GATHERED:
        rows = strategy.run(_as_gathered, args=(rows,))
    return _from_gathered(strategy.gather(rows, axis=0), dtype)


def _as_gathered(rows: tf.Tensor) -> tf.Tensor:
    """The same in one of _GATHERED, without a loss: the bits of large integers, parts of complex numbers."""
    if rows.dtype.is_complex:
        return tf.stack([tf.math.real(rows), tf.math.imag(rows)], -1)
    if rows.dtype.is_integer and rows.dtype.size >= 4:
        return tf.bitcast(rows, tf.float64 if rows.dtype.size == 8 else tf.int32)
    return tf.cast(rows, tf.float32 if rows.dtype.is_floating else tf.int32)


def _from_gathered(rows: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Undoes `_as_gathered`."""
    if dtype.is_complex:
        return tf.complex(*tf.unstack(rows, 2, -1))
    if dtype.is_integer and dtype.size >= 4:
        return tf.bitcast(rows, dtype)
    return tf.cast(rows, dtype)


def broadcast(strategy: tf.distribute.Strategy, values: Sequence[Any]) -> list[np.ndarray]:
    """Returns the values of the peer with rank 0, in every peer. Shapes and dtypes must be the same in all peers."""
    arrays = [np.asarray(v) for v in values]
    if peers(strategy)[0] == 1:
        return arrays

    def keep_first(*values: tf.Tensor) -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        is_first = context.replica_id_in_sync_group == 0
        kept = [tf.where(is_first, v, tf.zeros_like(v)) for v in values]
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, v) for v in kept]

    @tf.function(autograph=False)
    def broadcast_tensors(values: list[tf.Tensor]) -> list[tf.Tensor]:
        return [strategy.experimental_local_results(r)[0] for r in strategy.run(keep_first, args=tuple(values))]

    with session.current().progress.steps():
        received = broadcast_tensors([tf.convert_to_tensor(_as_floats(v)) for v in arrays])
        return [_from_floats(r.numpy(), v) for r, v in zip(received, arrays, strict=True)]


def _as_floats(array: np.ndarray) -> np.ndarray:
    """The same values in a dtype of which every NCCL and every GPU takes sums, and that holds all of them exactly.

    `all_reduce` splits what it has added up, and for int64 GPUs have no such operation (`SplitV`): where placement is
    hard, as in trainers, a job would end. Integers become two halves, [2, ...] of 32 bits each.
    """
    if array.dtype.kind in "biu":
        wide = array.astype(np.int64)
        return np.stack([wide >> 32, wide & 0xFFFFFFFF]).astype(np.float64)
    # What NumPy has from ml_dtypes, bfloat16 and floats of 8 bits, is a void type to it, and not every NCCL of
    # TensorFlow has bfloat16.
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _from_floats(floats: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Undoes `_as_floats`, of an array with the dtype of `like`."""
    if like.dtype.kind in "biu":
        high, low = floats.astype(np.int64)
        floats = (high << 32) + low
    return floats.astype(like.dtype)


def broadcast_variables(strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> None:
    """Assigns the values that Keras variables have in the peer with rank 0 to those of every peer."""
    if peers(strategy)[0] > 1:
        for variable, value in zip(variables, broadcast(strategy, [v.numpy() for v in variables]), strict=True):
            variable.assign(value)


def all_gather(strategy: tf.distribute.Strategy, data: bytes) -> list[bytes]:
    """Returns the data of every peer in the order of their ranks, in every peer. Lengths may differ."""
    if peers(strategy)[0] == 1:
        return [data]
    gather = _gather_function(strategy)
    with session.current().progress.steps():
        lengths = gather(tf.constant([len(data)], tf.float64)).numpy()[:, 0].astype(np.int64)
    words = np.zeros(-(-int(lengths.max()) // 4), np.uint32)  # collectives take numbers, not bytes: see `_as_floats`
    words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    with session.current().progress.steps():
        rows = gather(tf.constant(words.astype(np.float64))).numpy().astype(np.uint32)
    return [row.tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]


@functools.cache
def _gather_function(strategy: tf.distribute.Strategy) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from this peer's f64[n] to the f64[peers, n] of all peers."""
    replicas = strategy.num_replicas_in_sync // peers(strategy)[0]  # of each peer; its first one contributes

    def contribute(values: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        row = tf.one_hot(context.replica_id_in_sync_group, strategy.num_replicas_in_sync, dtype=tf.float64)[::replicas]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, row[:, tf.newaxis] * values)

    @tf.function(reduce_retracing=True, autograph=False)
    def gather(values: tf.Tensor) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(contribute, args=(values,)))[0]

    return gather
