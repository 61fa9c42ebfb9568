"""A NumPy function as a node of the graph: the way of the TensorFlow 1 tutorial, with `tf.numpy_function`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from scipy.signal import convolve2d

from tf2dist.life.engines.cells import Cells
from tf2dist.life.rule import Rule

_NEIGHBOURS = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], np.uint8)


class NumpyFunction(Cells):
    """Counts neighbours by SciPy's two-dimensional convolution."""

    def __init__(self, rule: Rule, rows: int, columns: int, edges: str):
        table = np.array(rule.table(), np.uint8)
        boundary = "wrap" if edges == "torus" else "fill"

        def update(cells: np.ndarray) -> np.ndarray:
            return table[9 * cells + convolve2d(cells, _NEIGHBOURS, mode="same", boundary=boundary)]

        super().__init__(rows, columns, lambda cells: tf.numpy_function(update, [cells], tf.uint8))
