"""Rows of data that are made up, on which what a user's functions compute is tried."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def made_up(spec, sizes: Sequence[float], draw: int = 0):
    """Rows of these specs: one for each of `sizes`, by which their floats are scaled; others for each `draw`.

    Where a spec is None, there is None.
    """
    random = np.random.default_rng(draw)

    def rows(s):
        if s is None:
            return None
        shape = [len(sizes), *[2 if d is None else d for d in s.shape[1:]]]
        if s.dtype == tf.string:
            return tf.fill(shape, "a")
        if not s.dtype.is_floating:
            return tf.cast(random.integers(0, 2, shape), s.dtype)
        scale = np.array(sizes).reshape([len(sizes), *[1] * (len(shape) - 1)])
        return tf.cast(scale * random.uniform(0.1, 0.9, shape), s.dtype)

    return tf.nest.map_structure(rows, spec)
