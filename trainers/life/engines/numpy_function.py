"""The engine that calls NumPy from the graph with `tf.numpy_function`, as the TensorFlow 1 tutorial did."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from scipy.signal import convolve2d

from trainers.life.engines.byte_cells import ByteCellsEngine
from trainers.life.rule import Rule

_NEIGHBOURS = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], np.uint8)


class NumpyFunction(ByteCellsEngine):
    """Counts neighbours by SciPy's two-dimensional convolution."""

    def __init__(self, rule: Rule, rows: int, columns: int, edges: str):
        table = np.array(rule.table(), np.uint8)
        boundary = "wrap" if edges == "torus" else "fill"

        def update(cells: np.ndarray) -> np.ndarray:
            return table[9 * cells + convolve2d(cells, _NEIGHBOURS, mode="same", boundary=boundary)]

        super().__init__(rows, columns, lambda cells: tf.numpy_function(update, [cells], tf.uint8))
