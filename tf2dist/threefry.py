"""Random numbers that are a pure function of a key and a counter, so that any process can make any of them.

Threefry-2x32 of J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011):
additions, rotations and xors of 32 bits, a bijection of counters for every key. It is integers throughout, so every
machine makes the same numbers.
"""

from __future__ import annotations

import tensorflow as tf

# The fewest with which the authors know of no statistical flaw; they take 20 where speed is not all.
ROUNDS = 13
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_PI, _UNIFORM = 0, 1  # second words of keys: what is made for one purpose has nothing to do with the other

# In a turn of the loop that counts: so many counters side by side, and so many of these after each other. From twice as
# many on XLA would share each turn among two threads, which takes longer than it saves.
_LANES, _UNROLLED = 128, 8
_TURN = _LANES * _UNROLLED


def schedule(key, rounds: int = ROUNDS) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """What a key, two words u32[...], adds to the two words of a counter before the rounds and after every fourth."""
    words = [key[0], key[1], key[0] ^ key[1] ^ tf.constant(_PARITY, tf.uint32)]
    turns = range(rounds // 4 + 1)
    return [(words[turn % 3], words[(turn + 1) % 3] + tf.constant(turn, tf.uint32)) for turn in turns]


def threefry(schedule, counter, rounds: int = ROUNDS) -> tuple[tf.Tensor, tf.Tensor]:
    """Two random words u32[...] for the schedule of a key and a counter, two words u32[...]."""
    x, y = counter[0] + schedule[0][0], counter[1] + schedule[0][1]
    for i in range(rounds):
        x = x + y
        y = _rotated(y, _ROTATIONS[i % 8]) ^ x
        if i % 4 == 3:
            x, y = x + schedule[i // 4 + 1][0], y + schedule[i // 4 + 1][1]
    return x, y


def _rotated(x, bits: int):
    left = tf.bitwise.left_shift(x, tf.constant(bits, tf.uint32))
    return left | tf.bitwise.right_shift(x, tf.constant(32 - bits, tf.uint32))


def points(seed, number) -> tuple[tf.Tensor, tf.Tensor]:
    """The points u32[...], u32[...] of a square with sides of 2**32, of these numbers i64[...]."""
    return threefry(_schedule(seed, _PI), _words(number))


def uniform(seed, number) -> tf.Tensor:
    """The random numbers f64[...] in [0, 1) of these numbers i64[...]; multiples of 2**-53."""
    x, y = threefry(_schedule(seed, _UNIFORM), _words(number))
    high = tf.cast(tf.bitwise.right_shift(x, tf.constant(5, tf.uint32)), tf.float64)
    low = tf.cast(tf.bitwise.right_shift(y, tf.constant(6, tf.uint32)), tf.float64)
    return (high * 2.0**26 + low) * 2.0**-53


def _schedule(seed, purpose: int):
    seed = tf.cast(seed, tf.uint32) if tf.is_tensor(seed) else tf.constant(seed, tf.uint32)
    return schedule((seed, tf.constant(purpose, tf.uint32)))


def _words(number):
    number = tf.cast(number, tf.uint64)
    return tf.cast(number, tf.uint32), tf.cast(tf.bitwise.right_shift(number, tf.constant(32, tf.uint64)), tf.uint32)


@tf.function(jit_compile=True)
def inside(seed, first, count) -> tf.Tensor:
    """How many i64[] of the `count` i64[] points from number `first` i64[] on are in the quarter circle, on one core.

    XLA makes one loop over registers of it. The comparison is exact: the sum of two squares of 64 bits overflows where
    a point is outside.
    """
    key = _schedule(seed, _PI)
    parts = [tf.range(part, part + _LANES) for part in range(0, _TURN, _LANES)]  # of a turn

    def outside(turn, part) -> tf.Tensor:
        low, high = _words(turn * _TURN)  # a turn begins at a multiple of its length, so that nothing is carried
        x, y = threefry(key, (low + tf.cast(part, tf.uint32), high))
        xx, yy = tf.cast(x, tf.uint64) * tf.cast(x, tf.uint64), tf.cast(y, tf.uint64) * tf.cast(y, tf.uint64)
        return xx + yy < xx

    def at_an_edge(turn) -> tf.Tensor:
        numbers = tf.range(_TURN)
        found = outside(turn, numbers)
        numbers = turn * _TURN + tf.cast(numbers, tf.int64)
        return tf.reduce_sum(tf.cast(found & (numbers >= first) & (numbers < first + count), tf.int64))

    begin, end = first // _TURN, (first + count) // _TURN
    lanes, turn = tf.zeros([_LANES], tf.int32), begin + 1
    while turn < end:  # XLA would compile a loop over tf.range anew for every length
        lanes = sum((tf.cast(outside(turn, part), tf.int32) for part in parts), lanes)
        turn += 1
    total = tf.reduce_sum(tf.cast(lanes, tf.int64)) + at_an_edge(begin)
    return count - total - tf.where(end > begin, at_an_edge(end), 0)
