"""Sums of sparse gradients over replicas, as one device would have them.

tf.distribute puts the slices of all replicas one after the other (tensorflow/python/distribute/cross_device_utils.py,
`all_reduce_indexed_slices`). For rows that each example looks up that is what one device has: Keras's optimizers see
every occurrence of a row apart (Adam adds up their squares). But rows that are looked up once for all examples, as
those of positions, are there once on one device, with the sum over the examples.

It also uses the same collectives in all turns of a loop. Where a later turn has fewer rows, as the last batch of an
epoch may, TensorFlow aborts all collectives of the process for good ("Shape mismatch in the collective instance"). So
replicas of one process use none here, and those between processes are numbered by their size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

_MESSAGES, _LENGTHS = 1 << 20, 1 + (1 << 20)  # our groups of collectives; tf.distribute numbers its own from 1
_BLOCK = 1024  # words; messages are filled up to a multiple of it, so that there are few numbers
_SAME_EVERYWHERE = ("Const", "ReadVariableOp", "Shape", "ShapeN", "Size", "Rank")
_UNCHANGED = ("Identity", "Reshape", "Cast")  # by which one lookup stays one
_ANY = (1 << 31) - 1  # as often as it likes: of rows that are as many for a batch of any size
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def sum_slices(strategy: tf.distribute.Strategy, gradients: Sequence) -> list[tf.IndexedSlices]:
    """The gradients of the global batch. In the cross-replica context.

    Args:
      gradients: for each table, a `tf.IndexedSlices` of each replica; of static shapes but for the number of slices.
    """
    tables = [list(strategy.experimental_local_results(g)) for g in gradients]
    often = [min(lookups_for_all(s.indices) for s in replicas) for replicas in tables]
    peers = strategy.num_replicas_in_sync // len(tables[0])
    if peers > 1:
        tables = _exchange(tables, peers)
    return [add_up(replicas, most) if most else _join(replicas) for replicas, most in zip(tables, often, strict=True)]


def lookups_for_all(indices: tf.Tensor) -> int:
    """How often one row is looked up at most, for all examples together; 0 if each example looks up its own."""
    without_data, has_fixed_length = _is_made_without_data(indices), indices.shape[0] is not None
    # If that cannot be seen, then by the length: that of a batch is not known while tracing.
    if not (has_fixed_length if without_data is None else without_data):
        return 0
    return _ANY if has_fixed_length else _lookups(indices)


def _lookups(indices: tf.Tensor) -> int:
    """Of how many lookups these are the rows: gradients of one table have those of each, one after the other."""
    if not tf.is_symbolic_tensor(indices):
        return 1
    operation = indices.op
    if operation.type == "ConcatV2":
        return sum(map(_lookups, operation.inputs[:-1]))
    if operation.type in ("If", "StatelessIf"):  # the same ones, or one after the other, as `loss_fractions` adds them
        return sum(_lookups(t) for t in operation.inputs if t.dtype == indices.dtype and t.shape.rank == 1) or 1
    return _lookups(operation.inputs[0]) if operation.type in _UNCHANGED else 1


def _is_made_without_data(tensor: tf.Tensor) -> bool | None:
    """Is a tensor made of constants, variables and shapes alone? None where a call of a function hides it."""
    seen, left = set(), [tensor]
    while left:
        tensor = left.pop()
        if not tf.is_symbolic_tensor(tensor):
            if tensor.dtype in (tf.resource, tf.variant):  # an iterator
                return False
            continue
        operation = tensor.op
        if (operation.graph, operation.name) in seen or operation.type in _SAME_EVERYWHERE:
            continue
        seen.add((operation.graph, operation.name))
        if operation.type in _CALLS:
            return None
        outside = [outer for outer, inner in getattr(operation.graph, "captures", ()) if inner.name == tensor.name]
        if operation.op_def.is_stateful or not (operation.inputs or outside):
            return False  # random numbers, or an argument
        left += [*operation.inputs, *outside]
    return True


def _join(replicas: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Concatenates the slices of all replicas."""
    values, indices = tf.concat([s.values for s in replicas], 0), tf.concat([s.indices for s in replicas], 0)
    return tf.IndexedSlices(values, indices, replicas[0].dense_shape)


def add_up(replicas: Sequence[tf.IndexedSlices], most: int) -> tf.IndexedSlices:
    """The sum of slices of the same rows. They are joined if they turn out to be of several, or of each example's.

    Args:
      most: how often one row may be there: `lookups_for_all`. The same rows, once for each example, are there more
        often.
    """
    first = replicas[0]
    length = tf.size(first.indices)
    is_one_lookup = tf.reduce_all([tf.equal(tf.size(s.indices), length) for s in replicas])
    if most < _ANY:
        is_one_lookup &= tf.reduce_all(tf.unique_with_counts(first.indices).count <= most)
    is_one_lookup = tf.cond(
        is_one_lookup,
        lambda: tf.reduce_all([tf.reduce_all(tf.equal(s.indices, first.indices)) for s in replicas]),
        lambda: False,
    )
    joined = _join(replicas)
    values, indices = tf.cond(
        is_one_lookup,
        lambda: (tf.add_n([s.values for s in replicas]), first.indices),
        lambda: (joined.values, joined.indices),
    )
    return tf.IndexedSlices(values, indices, first.dense_shape)


def _exchange(tables: Sequence[Sequence[tf.IndexedSlices]], peers: int) -> list[list[tf.IndexedSlices]]:
    """The slices of the replicas of all peers, in one message of each peer."""
    mine = [s for replicas in tables for s in replicas]
    result: list[list[tf.IndexedSlices]] = [[] for _ in tables]
    with tf.device("/cpu:0"):
        message = tf.concat([_to_words(t) for s in mine for t in (s.values, s.indices)], 0)
        numbers = [tf.size(message), *(tf.size(s.indices) for s in mine)]
        numbers = tf.reshape(_gather(_LENGTHS, tf.stack(numbers), peers, len(numbers)), [peers, len(numbers)])
        blocks = tf.reduce_max(numbers[:, 0]) // _BLOCK + 1
        message = tf.pad(message, [[0, blocks * _BLOCK - tf.size(message)]])
        messages = tf.reshape(_gather(_MESSAGES, message, peers, blocks), [peers, -1])
        for peer in range(peers):
            place, number = 0, 1
            for table, replicas in zip(result, tables, strict=True):
                for slices in replicas:
                    length, number = numbers[peer, number], number + 1
                    values, place = _from_words(messages[peer], place, length, slices.values)
                    indices, place = _from_words(messages[peer], place, length, slices.indices)
                    table.append(tf.IndexedSlices(values, indices, slices.dense_shape))
    return result


def _gather(group: int, tensor: tf.Tensor, peers: int, number) -> tf.Tensor:
    """The tensors of all peers, of one shape, one after the other. `number` i32[] says which shape of its group."""
    return tf.raw_ops.CollectiveGatherV2(
        input=tensor,
        group_size=peers,
        group_key=group,
        instance_key=number,
        ordering_token=[],
        communication_hint="ring",
    )


def _to_words(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor as i32[n]; of smaller numbers as float32."""
    wide = tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor
    return tf.reshape(tf.bitcast(wide, tf.int32), [-1])


def _from_words(words: tf.Tensor, place, length, like: tf.Tensor):
    """A tensor of `length` rows like `like` that `_to_words` has put at `place`, and the place after it."""
    wide = tf.float32 if like.dtype.size < 4 else like.dtype
    row: list = like.shape[1:].as_list()
    shape = [length, *row] if wide.size == 4 else [length, *row, wide.size // 4]
    end = place + length * (math.prod(row) * wide.size // 4)
    tensor = tf.bitcast(tf.reshape(words[place:end], shape), wide)
    return tf.cast(tf.ensure_shape(tensor, [None, *row]), like.dtype), end
