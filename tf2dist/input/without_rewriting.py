"""Datasets that tf.data runs as they were made, without a copy of the tensors that they hold."""

from __future__ import annotations

import tensorflow as tf

from tf2dist.input.without_autotune import without_autotune


def without_rewriting(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns tuning and optimization of a dataset of ours off, which is written as it should run.

    To optimize a dataset, TensorFlow serializes its graph when an iterator is made (`RewriteDataset` in
    tensorflow/core/data/rewrite_utils.cc): that takes the memory of all tensors in it once more.
    """
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return without_autotune(dataset).with_options(options)
