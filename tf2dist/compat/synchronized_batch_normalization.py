"""Statistics of `BatchNormalization(synchronized=True)` over the whole global batch.

Keras also counts the row of a slice that stands in for an empty one, ignores `synchronized` where a mask comes with
the inputs (keras/src/layers/normalization/batch_normalization.py, `_moments`), and takes a variance as a difference of
two large numbers (keras/src/backend/tensorflow/nn.py, `_compute_moments_sync`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import nn

from tf2dist.compat.global_batch_loss import exchanges_sums, sum_over_slices
from tf2dist.compat.patching import Patch


@contextlib.contextmanager
def over_slices() -> Iterator[None]:
    """Inside, synchronized statistics are those of all slices, if the replicas may exchange sums."""
    with _moments.applied(), _masked_moments.applied():
        yield


def _mean_and_variance(x, weights, axes, epsilon: float = 0.0):
    """Over all slices, with the reduced dimensions kept."""
    total, count = (sum_over_slices(tf.reduce_sum(t, axes, keepdims=True)) for t in (x * weights, weights))
    mean = tf.math.divide_no_nan(total, count + epsilon)
    squares = sum_over_slices(tf.reduce_sum(tf.square(x - mean) * weights, axes, keepdims=True))
    return mean, tf.math.divide_no_nan(squares, count + epsilon)


def _compute_moments_sync(x, axes, keepdims):
    if not exchanges_sums():
        return _moments.original("_compute_moments_sync")(x, axes, keepdims)
    found = _mean_and_variance(x, tf.ones_like(x), axes)
    return found if keepdims else tuple(tf.squeeze(t, axes) for t in found)


def _moments_of_layer(self, inputs, mask):
    if mask is None or not self.synchronized or not exchanges_sums():
        return _masked_moments.original("_moments")(self, inputs, mask)
    weights = tf.broadcast_to(tf.cast(mask, inputs.dtype)[..., None], tf.shape(inputs))
    axes = [n for n in range(len(inputs.shape)) if n != self.axis % len(inputs.shape)]
    found = _mean_and_variance(inputs, weights, axes, keras.config.epsilon())
    return tuple(tf.squeeze(t, axes) for t in found)


_moments = Patch(nn, {"_compute_moments_sync": _compute_moments_sync})
_masked_moments = Patch(keras.layers.BatchNormalization, {"_moments": _moments_of_layer})
