"""`class_weight` of `keras.Model.fit` as a function of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import keras
import tensorflow as tf

from tf2dist.errors import UsageError


@dataclass(frozen=True)
class ClassWeight:
    """Multiplies sample weights by a weight for each class: `(x, y, w)` to `(x, y, w * weights[class of y])`.

    Attributes:
      classes: in ascending order. The class of `y` is its value, or the index of the largest where it is a row of
        several (one-hot).
      weights: theirs; any other class has weight 1.
    """

    classes: tuple[int, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, weights: Mapping[int, float]) -> ClassWeight:
        """From a dictionary as `keras.Model.fit` takes it.

        Raises:
          ValueError: a key that is no class, or a value that is no number.
        """
        try:
            wrong = any(isinstance(key, str) or int(key) != key for key in weights)
            found = {} if wrong else {int(key): float(weights[key]) for key in sorted(weights)}
            wrong = wrong or any(abs(key) >= 1 << 63 for key in found)
        except (TypeError, ValueError, OverflowError):
            wrong, found = True, {}
        if wrong:
            raise UsageError(f"class_weight must map classes 0, 1, ... to weights, found {weights!r}")
        return cls(tuple(found), tuple(found.values()))

    def __call__(self, *batch):
        x, labels, weight = keras.utils.unpack_x_y_sample_weight(batch)
        y = labels
        if not hasattr(y, "shape"):
            raise UsageError("class_weight is for models with one output, whose labels are one array of classes")
        if not (y.shape.rank and y.shape.rank > 1):
            classes = _as_classes(y)
        elif y.shape[-1] is not None:
            classes = _as_classes(tf.squeeze(y, -1)) if y.shape[-1] == 1 else tf.argmax(y, axis=-1)
        else:
            one_hot = tf.shape(y)[-1] > 1
            classes = tf.cond(one_hot, lambda: tf.argmax(y, axis=-1), lambda: _as_classes(y[..., 0]))
        known, table = tf.constant(self.classes, tf.int64), tf.constant(self.weights)
        flat = tf.reshape(classes, [-1])
        places = tf.minimum(tf.searchsorted(known, flat), len(self.classes) - 1)
        of_class = tf.where(tf.gather(known, places) == flat, tf.gather(table, places), 1.0)
        of_class = tf.reshape(of_class, tf.shape(classes))
        of_class.set_shape(classes.shape)
        if weight is None:
            return x, labels, of_class
        weight, words = tf.cast(weight, of_class.dtype), of_class.shape.rank
        if words is not None and weight.shape.rank is not None and weight.shape.rank <= words:
            # Of each word, or of each example, whose words have classes.
            weight = weight[(..., *[tf.newaxis] * (words - weight.shape.rank))]
        else:
            weight = tf.reshape(weight, tf.shape(of_class))  # it may be a column
        return x, labels, of_class * weight


def _as_classes(y):
    return tf.cast(tf.round(y) if y.dtype.is_floating else y, tf.int64)
