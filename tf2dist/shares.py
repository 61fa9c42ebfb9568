"""Losses of parts that add up to the loss of the whole global batch.

Keras divides a mean over the examples of one replica by the number of replicas, which is right where all replicas
hold equally many. Here each part has a *share*, the fraction of the global batch that it holds, and a mean is
multiplied by it instead; sums stay as they are; means over what is not masked, or over sample weights, are taken
over the whole global batch. So the losses, and the gradients, of all parts add up to those of one device.

The functions of Keras that do the dividing are replaced by ones that behave as before wherever no share is set.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf
from keras.src.losses import loss as _keras

_here = threading.local()  # each replica of a MirroredStrategy is traced in a thread of its own
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@contextlib.contextmanager
def of_the_global_batch(share: tf.Tensor | None, *, collective: bool) -> Iterator[None]:
    """Inside, losses are those of a part with this share, f32[]; None changes nothing.

    Args:
      share: the fraction of the global batch in this part; 0 for a part that stands in for an empty one.
      collective: may the replicas exchange sums (not inside of a function that XLA compiles)?
    """
    outer = getattr(_here, "share", None), getattr(_here, "collective", False)
    _here.share, _here.collective = share, collective
    try:
        yield
    finally:
        _here.share, _here.collective = outer


def _share(dtype) -> tf.Tensor | None:
    share = getattr(_here, "share", None)
    return None if share is None else tf.cast(share, dtype)


def _total(value: tf.Tensor) -> tf.Tensor:
    """The sum over all parts of what each counts, without those that stand in for empty ones."""
    mine = tf.where(_here.share > 0, value, tf.zeros_like(value))
    context = tf.distribute.get_replica_context()
    return tf.stop_gradient(context.all_reduce(tf.distribute.ReduceOp.SUM, mine))


_scale, _unscale = _keras.scale_loss_for_distribution, _keras.unscale_loss_for_distribution
_apply_mask, _reduce_values = _keras.apply_mask, _keras.reduce_values


def scale_loss_for_distribution(value):
    share = _share(value.dtype)
    return _scale(value) if share is None else value * share


def unscale_loss_for_distribution(value):
    share = _share(value.dtype)
    return _unscale(value) if share is None else value / share


def apply_mask(sample_weight, mask, dtype, reduction):
    share = _share(dtype)
    if share is None or mask is None or not _here.collective or reduction not in _MEANS[:2]:
        return _apply_mask(sample_weight, mask, dtype, reduction)
    # Keras weighs what is valid by all/valid of this part; all/valid of the global batch is wanted, and the mean
    # that follows is over this part and multiplied by its share.
    valid = _total(tf.reduce_sum(tf.cast(mask, dtype)))
    weight = tf.cast(mask, dtype) * tf.math.divide_no_nan(tf.cast(tf.size(mask), dtype), share * valid)
    if sample_weight is None:
        return weight
    weight, sample_weight = _keras.squeeze_or_expand_to_same_rank(weight, tf.cast(sample_weight, dtype))
    return sample_weight * weight


def reduce_values(values, sample_weight=None, reduction="sum_over_batch_size"):
    alone = _share(values.dtype) is None or not _here.collective
    if alone or reduction != _MEANS[2] or sample_weight is None or values.shape.rank == 0:
        return _reduce_values(values, sample_weight, reduction)
    return tf.math.divide_no_nan(tf.reduce_sum(values), _total(tf.cast(tf.reduce_sum(sample_weight), values.dtype)))


for _function in (scale_loss_for_distribution, unscale_loss_for_distribution, apply_mask, reduce_values):
    setattr(_keras, _function.__name__, _function)
