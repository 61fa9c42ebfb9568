"""What the user gives as data, as streams of batches: one interface over arrays, datasets and functions.

A *global batch* holds the examples of one update. Every feed cuts it into one part for each replica, and each part
carries its *share*, the fraction of the global batch that it holds, so that a last batch that does not divide
evenly still counts every example once and with equal weight.

A feed is split in two: `tensors` are what has to travel to a remote worker, once (`local` is what this process
needs), and the other methods are pure TensorFlow and rebuild the stream there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist.datasets import Batches, FromFunction
from tf2dist.examples import Examples


@dataclass(frozen=True)
class ClassWeight:
    """Weighs each example by its class: `(x, y)` or `(x, y, w)` to `(x, y, w * weight[class of y])`.

    Attributes:
      weights: of classes 0, 1, ...; a class beyond them has weight 1. The class of `y` is its value, or the index of
        the largest where it is a row of several (one-hot).
    """

    weights: tuple[float, ...]

    @classmethod
    def of(cls, weights: Mapping[int, float]) -> ClassWeight:
        """From a dictionary as `keras.Model.fit` takes it.

        Raises:
          ValueError: a key that is no class.
        """
        wrong = [key for key in weights if int(key) != key or key < 0]
        if wrong or not weights:
            raise ValueError(f"class_weight must map classes 0, 1, ... to weights, found {weights!r}")
        return cls(tuple(float(weights.get(c, 1.0)) for c in range(int(max(weights)) + 1)))

    def __call__(self, *batch):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        if not hasattr(y, "shape"):
            raise ValueError("class_weight is for models with one output, whose labels are one array of classes")
        if y.shape.rank and y.shape.rank > 1 and y.shape[-1] != 1:
            classes = tf.argmax(y, axis=-1)
        else:
            classes = tf.cast(tf.round(tf.reshape(y, [-1])) if y.dtype.is_floating else tf.reshape(y, [-1]), tf.int64)
        table = tf.constant([*self.weights, 1.0])
        of_class = tf.gather(table, tf.clip_by_value(classes, 0, len(self.weights)))
        return x, y, of_class if weight is None else of_class * tf.cast(weight, of_class.dtype)


def as_feed(
    data: Any,
    *,
    batch_size: int | None = None,
    shuffle=False,
    seed: int = 0,
    steps: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    once: bool = False,
):
    """Makes a feed of anything `fit`, `evaluate` and `predict` take.

    Args:
      once: for one pass over all examples, not for endless training.

    Raises:
      ValueError: for data of an unknown kind, and for a `batch_size` that is missing or contradicts the data's own.
    """
    weigh = None if class_weight is None else ClassWeight.of(class_weight)
    if isinstance(data, (Examples, Batches, FromFunction)):
        return data if weigh is None else data.mapped(weigh)
    if _is_arrays(data):
        arrays = tuple(data) if isinstance(data, (tuple, list)) else (data,)
        if not 1 <= len(arrays) <= 3:
            raise ValueError(f"arrays come as (x,), (x, y) or (x, y, sample_weight), found {len(arrays)} of them")
        size = 32 if batch_size is None else batch_size
        return Examples(arrays, size, shuffle=shuffle, seed=seed, transform=weigh)
    if batch_size is not None and (isinstance(data, tf.data.Dataset) or callable(data)):
        raise ValueError("batch_size is for arrays; a Dataset is batched already, by the global batch")
    if callable(data) and not isinstance(data, tf.data.Dataset):
        if not once:
            function = FromFunction(data)
            return function if weigh is None else function.mapped(weigh)
        data = data(tf.distribute.InputContext())  # cut by us, so that every example is used once
    if isinstance(data, tf.data.Dataset):
        batches = Batches(data, steps)
        return batches if weigh is None else batches.mapped(weigh)
    raise ValueError(
        "data must be a tf.data.Dataset, a tuple of arrays (x, y), tf2dist.Examples or a function of a "
        f"tf.distribute.InputContext that returns a Dataset, found {type(data).__name__}; a generator becomes a "
        "Dataset by tf.data.Dataset.from_generator"
    )


def _is_arrays(data: Any) -> bool:
    leaves = tf.nest.flatten(data)
    return bool(leaves) and all(isinstance(a, (np.ndarray, tf.Tensor)) or hasattr(a, "__array__") for a in leaves)
