"""What the engines that hold a byte a cell have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf2dist.life import words as host


class Cells:
    """An engine whose state is a tensor u8[rows, columns] of zeros and ones.

    Args:
      step: the next generation of such a tensor, as TensorFlow operations.
    """

    def __init__(self, rows: int, columns: int, step: Callable[[tf.Tensor], tf.Tensor]):
        self._shape = rows, columns
        # Weights, of which a board's hash is the sum over its living cells: one of 2**64 values.
        generator = np.random.default_rng(64)
        weights = tf.constant(generator.integers(0, 2**64, self._shape, np.uint64).view(np.int64))

        @tf.function
        def advance(cells, generations):
            for _ in tf.range(generations):
                cells = tf.ensure_shape(step(cells), self._shape)
            return cells

        @tf.function
        def look(cells):
            wide = tf.cast(cells, tf.int64)
            return tf.stack([tf.reduce_sum(wide * weights), tf.reduce_sum(wide)])

        self._advance, self._look = advance, look

    def load(self, words: np.ndarray) -> tf.Tensor:
        return tf.constant(host.unpack(words, self._shape[1]))

    def words(self, state: tf.Tensor) -> np.ndarray:
        return host.pack(state.numpy())

    def advance(self, state: tf.Tensor, generations: int) -> tf.Tensor:
        return self._advance(state, tf.constant(generations, tf.int64))

    def watched(self, state: tf.Tensor, generations: int) -> tuple[tf.Tensor, np.ndarray, np.ndarray]:
        hashes, populations = np.empty(generations, np.uint64), np.empty(generations, np.int64)
        for i in range(generations):
            state = self.advance(state, 1)
            hashes[i], populations[i] = self.look(state)
        return state, hashes, populations

    def look(self, state: tf.Tensor) -> tuple[int, int]:
        hashed, population = self._look(state).numpy().tolist()
        return hashed % 2**64, population

    def same(self, one: tf.Tensor, other: tf.Tensor) -> bool:
        return bool(tf.reduce_all(one == other))
