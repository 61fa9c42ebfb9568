"""The engine that counts neighbours with TensorFlow's convolution."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainers.life.engines.byte_cells import ByteCellsEngine
from trainers.life.rule import Rule

# A living cell adds 1 to its neighbours and 9 to itself: the sum is the index into the rule's table.
_KERNEL = np.array([[1, 1, 1], [1, 9, 1], [1, 1, 1]], np.float32).reshape(3, 3, 1, 1)


class Conv(ByteCellsEngine):
    """A 3x3 convolution in float32, in which sums up to 17 are exact, and a table of the rule."""

    def __init__(self, rule: Rule, rows: int, columns: int, edges: str):
        table = tf.constant(rule.table(), tf.uint8)

        def step(cells: tf.Tensor) -> tf.Tensor:
            if edges == "torus":
                cells = tf.concat([cells[-1:], cells, cells[:1]], 0)
                cells = tf.concat([cells[:, -1:], cells, cells[:, :1]], 1)  # u8[rows + 2, columns + 2]
            images = tf.cast(cells, tf.float32)[None, :, :, None]
            indices = tf.nn.conv2d(images, _KERNEL, 1, "VALID" if edges == "torus" else "SAME")[0, :, :, 0]
            return tf.gather(table, tf.cast(indices, tf.int32))

        super().__init__(rows, columns, step)
