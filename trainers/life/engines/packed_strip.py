"""The kernel of the packed engine: several generations of a strip of rows, compiled by XLA.

A strip is one flat vector of words, row after row, so that each neighbour is the same number of words away everywhere
and XLA compiles a generation to one vectorized loop. Around the strip's own rows are `halo` ghost rows above and below
and a ghost word on either side. They are correct at first; errors move in from their outer edge by one cell a
generation, so that after `halo` generations, 64 at most, the strip's own cells are still correct.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from trainers.life import rule_diagram

_AND, _OR, _XOR, _NOT = tf.bitwise.bitwise_and, tf.bitwise.bitwise_or, tf.bitwise.bitwise_xor, tf.bitwise.invert
_U64 = tf.uint64


class _Gates:
    """Gates on words of 64 cells."""

    land, lor, xor, lnot = map(staticmethod, (_AND, _OR, _XOR, _NOT))

    def __init__(self, like: tf.Tensor):
        self.constant = lambda bit: tf.fill(tf.shape(like), tf.constant(2**64 - 1 if bit else 0, _U64))


def _shape(tensor: tf.Tensor) -> Any:
    """Returns the dimensions, all of which are known while a graph is traced."""
    return tensor.shape


def next_generation(words: tf.Tensor, row: int, diagram: rule_diagram.Node) -> tf.Tensor:
    """Returns the next generation of a flat strip u64[n] with `row` words a row, without its first and last row + 1
    words: u64[n - 2 * row - 2]."""
    centre = words[1:-1]
    left = _OR(_left(centre, 1), _right(words[:-2], 63))
    right = _OR(_right(centre, 1), _left(words[2:], 63))
    # Sums of a row's cells: of two neighbours, pair0 + 2 pair1; of these and the cell between, row0 + 2 row1.
    pair0, pair1 = _XOR(left, right), _AND(left, right)
    row0, row1 = _XOR(pair0, centre), _OR(pair1, _AND(pair0, centre))

    many = _shape(words)[0] - 2 - 2 * row
    above0, above1 = row0[:many], row1[:many]
    below0, below1 = row0[2 * row :], row1[2 * row :]
    beside0, beside1 = pair0[row : row + many], pair1[row : row + many]
    half = _XOR(above0, below0)
    n0, carry = _XOR(half, beside0), _OR(_AND(above0, below0), _AND(half, beside0))
    outer, outer_carry = _XOR(above1, below1), _AND(above1, below1)
    inner, inner_carry = _XOR(beside1, carry), _AND(beside1, carry)
    # `outer` and `outer_carry` are never both set, so that their carries into n2 meet at most one of each other.
    twos = _OR(outer_carry, _AND(outer, inner))
    count = {"n0": n0, "n1": _XOR(outer, inner), "n2": _XOR(twos, inner_carry), "n3": _AND(twos, inner_carry)}
    alive = words[row + 1 : row + 1 + many]
    return rule_diagram.evaluate(diagram, {"alive": alive, **count}, _Gates(alive))


def widen(words: tf.Tensor, columns: int, edges: str) -> tf.Tensor:
    """Adds a ghost word on either side of rows u64[r, w]: u64[r, w + 2].

    On a torus the ghost words, and the bits of the last word beyond the last column, are the cells from the other side;
    this needs at least 128 columns. Otherwise they are 0.
    """
    if edges != "torus":
        return tf.pad(words, [[0, 0], [1, 1]])
    width = _shape(words)[1]
    used = columns - 64 * (width - 1)  # bits of the last word
    if used == 64:
        return tf.concat([words[:, -1:], words, words[:, :1]], 1)
    before = _OR(_right(words[:, width - 2 : width - 1], used), _left(words[:, -1:], 64 - used))
    last = _OR(words[:, -1:], _left(words[:, :1], used))
    after = _OR(_right(words[:, :1], 64 - used), _left(words[:, 1:2], used))
    return tf.concat([before, words[:, :-1], last, after], 1)


def column_mask(columns: int) -> np.ndarray:
    """Returns a mask of the bits of a widened row, u64[w + 2], that are cells of the board."""
    width = -(-columns // 64)
    mask = np.full(width + 2, 2**64 - 1, np.uint64)
    mask[0] = mask[-1] = 0
    mask[-2] >>= np.uint64(64 * width - columns)
    return mask


def advance(
    above: tf.Tensor,
    own: tf.Tensor,
    below: tf.Tensor,
    generations: tf.Tensor,
    walls: tf.Tensor | None,
    number: tf.Tensor | None,
    *,
    columns: int,
    edges: str,
    diagram: rule_diagram.Node,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns the strip `own` u64[h, w] at most `halo` generations later; to be compiled by XLA.

    Args:
      above, below: the rows u64[halo, w] around it.
      generations: i32[].
      walls: u64[halo + h + halo, w + 2], the bits where cells can live; None where all can.
      number: u64[], the strip's first row on the board, if it is observed; otherwise None.

    Returns:
      The strip u64[h, w], and if observed u64[2, halo]: hashes and populations of its own rows after each generation;
      their sums over all strips are the board's.
    """
    halo, (height, width) = _shape(above)[0], _shape(own)
    row = width + 2
    # One more word at either end: then exactly the first and the last row of a generation are unknown.
    words = tf.pad(tf.reshape(widen(tf.concat([above, own, below], 0), columns, edges), [-1]), [[1, 1]])
    if walls is not None:
        walls = tf.pad(tf.reshape(walls, [-1]), [[1, 1]])
        words = _AND(words, walls)
    first, last = 1 + halo * row, 1 + (halo + height) * row
    seen = tf.zeros([2, halo], _U64)
    for i in tf.range(generations):
        inside = next_generation(words, row, diagram)
        words = tf.pad(inside, [[row + 1, row + 1]])  # fused with the rest; a concatenation would not be vectorized
        if walls is not None:
            words = _AND(words, walls)
        if number is not None:
            sums = observe(tf.reshape(words[first:last], [height, row])[:, 1:-1], number, columns=columns)
            seen = tf.where(tf.range(halo) == i, sums[:, None], seen)
    rows = tf.reshape(words[first:last], [height, row])[:, 1:-1]
    rows = _AND(rows, column_mask(columns)[1:-1])
    return rows, seen if number is not None else None


def observe(rows: tf.Tensor, number: tf.Tensor, *, columns: int) -> tf.Tensor:
    """Returns hash and population u64[2] of a strip's own rows u64[h, w]; `number` is the first row's on the board.

    The hash is the sum of the words, each mixed with its position on the board by SplitMix64's finalizer.
    """
    height, width = _shape(rows)
    rows = _AND(rows, column_mask(columns)[1:-1])
    positions = tf.cast(tf.reshape(tf.range(height * width), [height, width]), _U64) + number * tf.constant(width, _U64)
    mixed = rows + positions * tf.constant(0x9E3779B97F4A7C15, _U64)
    mixed = _XOR(mixed, _right(mixed, 30)) * tf.constant(0xBF58476D1CE4E5B9, _U64)
    mixed = _XOR(mixed, _right(mixed, 27)) * tf.constant(0x94D049BB133111EB, _U64)
    return tf.stack([tf.reduce_sum(_XOR(mixed, _right(mixed, 31))), tf.reduce_sum(_popcount(rows))])


def _popcount(words: tf.Tensor) -> tf.Tensor:
    """Counts the bits that are set in each word: sums of 2, 4 and 8 neighbouring bits, then of the bytes."""
    words = words - _AND(_right(words, 1), _repeat_byte(0x55))
    words = _AND(words, _repeat_byte(0x33)) + _AND(_right(words, 2), _repeat_byte(0x33))
    words = _AND(words + _right(words, 4), _repeat_byte(0x0F))
    return _right(words * _repeat_byte(0x01), 56)


def _repeat_byte(byte: int) -> tf.Tensor:
    return tf.constant(int.from_bytes(bytes([byte]) * 8, "little"), _U64)


def _left(words: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.left_shift(words, tf.constant(bits, _U64))


def _right(words: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(words, tf.constant(bits, _U64))
