"""Noisy points of a straight line: a fixed set, or an endless stream of fresh ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_CHUNK_SIZE = 1000  # fresh points that are made at once
TEST_SIZE = 10_000  # fresh points to test on


@dataclass(frozen=True)
class FixedPoints:
    """`rows` points at equal distances in [-1, 1], y = w x + b + noise N(0, 1).

    Attributes:
      solution_name: what `solution` is, in words.
    """

    w: float
    b: float
    noise: float
    seed: int
    rows: int = 101
    solution_name: str = "least squares"

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns x f32[rows, 1], y f32[rows, 1]."""
        x = np.linspace(-1, 1, self.rows)
        y = self.w * x + self.b + self.noise * np.random.default_rng(self.seed).standard_normal(self.rows)
        return x[:, None].astype(np.float32), y[:, None].astype(np.float32)

    @property
    def solution(self) -> tuple[float, float]:
        """Weight and bias of the least-squares line."""
        x, y = self.arrays()
        w, b = np.polyfit(x[:, 0].astype(np.float64), y[:, 0].astype(np.float64), 1)
        return float(w), float(b)

    def training_data(self, batch_size: int):
        """Returns the points for `tf2dist.fit`, in a new order each pass."""
        import tf2dist

        return tf2dist.Examples(self.arrays(), batch_size, seed=self.seed)

    def test_data(self):
        """Returns x f32[rows, 1], y f32[rows, 1]: the points themselves."""
        return self.arrays()


@dataclass(frozen=True)
class FreshPoints:
    """Points with x ~ N(0, 1) and y = w x + b + noise N(0, 1); each is seen once."""

    w: float
    b: float
    noise: float
    seed: int
    rows = None
    solution_name = "the true line"

    @property
    def solution(self) -> tuple[float, float]:
        """Weight and bias that the points are made with."""
        return self.w, self.b

    def _points(self, number, size: int):
        """Returns chunk `number` i64[]: x f32[size, 1], y f32[size, 1], which follow from the seed and the number."""
        import tensorflow as tf

        key = tf.stack([tf.constant(self.seed, tf.int64), tf.cast(number, tf.int64)])
        x, noise = tf.unstack(tf.random.stateless_normal([2, size, 1], key))
        return x, self.w * x + self.b + self.noise * noise

    def training_data(self, batch_size: int):
        """Returns a function of an `InputContext` for `tf2dist.fit`; no two replicas or workers get the same point."""

        def batches(context):
            import tensorflow as tf

            numbers = tf.data.Dataset.range(1 << 60).shard(context.num_input_pipelines, context.input_pipeline_id)
            points = numbers.map(lambda number: self._points(number, _CHUNK_SIZE)).unbatch()
            return points.batch(batch_size // context.num_replicas_in_sync).prefetch(_CHUNK_SIZE)

        return batches

    def test_data(self):
        """Returns other points: x f32[TEST_SIZE, 1], y f32[TEST_SIZE, 1]."""
        import tensorflow as tf

        with tf.device("/cpu:0"):
            return tuple(t.numpy() for t in self._points(-1, TEST_SIZE))
