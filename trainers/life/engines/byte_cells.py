"""The base of the engines that hold one byte a cell."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from trainers.life import packed_board


class ByteCellsEngine:
    """An engine whose state is a tensor u8[rows, columns] of zeros and ones.

    Args:
      step: returns the next generation of such a tensor, in TensorFlow operations.
    """

    def __init__(self, rows: int, columns: int, step: Callable[[tf.Tensor], tf.Tensor]):
        self._shape = rows, columns
        # A board's hash is the sum of the weights of its living cells, modulo 2**64.
        generator = np.random.default_rng(64)
        weights = tf.constant(generator.integers(0, 2**64, self._shape, np.uint64).view(np.int64))

        @tf.function
        def advance(cells, generations):
            for _ in tf.range(generations):
                cells = tf.ensure_shape(step(cells), self._shape)
            return cells

        @tf.function
        def observe(cells):
            wide = tf.cast(cells, tf.int64)
            return tf.stack([tf.reduce_sum(wide * weights), tf.reduce_sum(wide)])

        self._advance, self._observe = advance, observe

    def load(self, board: np.ndarray) -> tf.Tensor:
        return tf.constant(packed_board.unpack(board, self._shape[1]))

    def board(self, state: tf.Tensor) -> np.ndarray:
        return packed_board.pack(state.numpy())

    def advance(self, state: tf.Tensor, generations: int) -> tf.Tensor:
        return self._advance(state, tf.constant(generations, tf.int64))

    def advance_observed(self, state: tf.Tensor, generations: int) -> tuple[tf.Tensor, np.ndarray, np.ndarray]:
        hashes, populations = np.empty(generations, np.uint64), np.empty(generations, np.int64)
        for i in range(generations):
            state = self.advance(state, 1)
            hashes[i], populations[i] = self.observe(state)
        return state, hashes, populations

    def observe(self, state: tf.Tensor) -> tuple[int, int]:
        hashed, population = self._observe(state).numpy().tolist()
        return hashed % 2**64, population

    def equal(self, one: tf.Tensor, other: tf.Tensor) -> bool:
        return bool(tf.reduce_all(one == other))
