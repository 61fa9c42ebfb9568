"""Threefry: random numbers as a pure function of a key and a counter, so that any process can make any of them.

Threefry-2x32 of J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011):
additions, rotations and xors of 32 bits, a bijection of counters for every key. It is integers throughout, so every
machine makes the same numbers.
"""

from __future__ import annotations

import tensorflow as tf

# The fewest for which the authors know no statistical flaw; their conservative choice is 20.
ROUNDS = 13
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_PI_STREAM, _UNIFORM_STREAM = 0, 1  # second words of keys, so that the streams are independent

# An iteration of the counting loop handles _UNROLLED vectors of _LANES counters. From twice as many on, XLA would split
# each iteration among two threads, which takes longer than it saves.
_LANES, _UNROLLED = 128, 8
_BLOCK = _LANES * _UNROLLED  # counters of an iteration


def key_schedule(key, rounds: int = ROUNDS) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns what a key, two words u32[...], adds to a counter before the rounds and after every fourth round."""
    words = [key[0], key[1], key[0] ^ key[1] ^ tf.constant(_PARITY, tf.uint32)]
    turns = range(rounds // 4 + 1)
    return [(words[turn % 3], words[(turn + 1) % 3] + tf.constant(turn, tf.uint32)) for turn in turns]


def threefry(schedule, counter, rounds: int = ROUNDS) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two random words u32[...] for a key's schedule and a counter, two words u32[...]."""
    x, y = counter[0] + schedule[0][0], counter[1] + schedule[0][1]
    for i in range(rounds):
        x = x + y
        y = _rotate_left(y, _ROTATIONS[i % 8]) ^ x
        if i % 4 == 3:
            x, y = x + schedule[i // 4 + 1][0], y + schedule[i // 4 + 1][1]
    return x, y


def _rotate_left(x, bits: int):
    left = tf.bitwise.left_shift(x, tf.constant(bits, tf.uint32))
    return left | tf.bitwise.right_shift(x, tf.constant(32 - bits, tf.uint32))


def points(seed, number) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the points number i64[...] as x u32[...], y u32[...], in a square with sides of 2**32."""
    return threefry(_seed_schedule(seed, _PI_STREAM), _words(number))


def uniform(seed, number) -> tf.Tensor:
    """Returns the random numbers f64[...] in [0, 1) with these indices i64[...]; multiples of 2**-53."""
    x, y = threefry(_seed_schedule(seed, _UNIFORM_STREAM), _words(number))
    high = tf.cast(tf.bitwise.right_shift(x, tf.constant(5, tf.uint32)), tf.float64)
    low = tf.cast(tf.bitwise.right_shift(y, tf.constant(6, tf.uint32)), tf.float64)
    return (high * 2.0**26 + low) * 2.0**-53


def _seed_schedule(seed, stream: int):
    seed = tf.cast(seed, tf.uint32) if tf.is_tensor(seed) else tf.constant(seed, tf.uint32)
    return key_schedule((seed, tf.constant(stream, tf.uint32)))


def _words(number):
    number = tf.cast(number, tf.uint64)
    return tf.cast(number, tf.uint32), tf.cast(tf.bitwise.right_shift(number, tf.constant(32, tf.uint64)), tf.uint32)


@tf.function(jit_compile=True)
def inside(seed, first, count) -> tf.Tensor:
    """Counts i64[] the points inside the quarter circle, of `count` i64[] from number `first` i64[] on, on one core.

    XLA compiles it to one loop over registers of a CPU. On a GPU it counts the same, but each turn of the loop is a few
    kernels for a thousand points, so that a core of its host is faster. The comparison is exact: the 64-bit sum of two
    squares overflows exactly where a point is outside.
    """
    key = _seed_schedule(seed, _PI_STREAM)
    vectors = [tf.range(start, start + _LANES) for start in range(0, _BLOCK, _LANES)]  # indices within a block

    def outside(block, indices) -> tf.Tensor:
        low, high = _words(block * _BLOCK)  # blocks start at multiples of their length: nothing is carried
        x, y = threefry(key, (low + tf.cast(indices, tf.uint32), high))
        xx, yy = tf.cast(x, tf.uint64) * tf.cast(x, tf.uint64), tf.cast(y, tf.uint64) * tf.cast(y, tf.uint64)
        return xx + yy < xx

    def outside_of_partial(block) -> tf.Tensor:
        indices = tf.range(_BLOCK)
        is_outside = outside(block, indices)
        numbers = block * _BLOCK + tf.cast(indices, tf.int64)
        return tf.reduce_sum(tf.cast(is_outside & (numbers >= first) & (numbers < first + count), tf.int64))

    begin, end = first // _BLOCK, (first + count) // _BLOCK
    lanes, block = tf.zeros([_LANES], tf.int32), begin + 1
    while block < end:  # XLA would compile a loop over tf.range anew for every length
        lanes = sum((tf.cast(outside(block, indices), tf.int32) for indices in vectors), lanes)
        block += 1
    total = tf.reduce_sum(tf.cast(lanes, tf.int64)) + outside_of_partial(begin)
    return count - total - tf.where(end > begin, outside_of_partial(end), 0)
