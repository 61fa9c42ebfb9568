"""Datasets whose iterators end at once."""

from __future__ import annotations

import warnings

import tensorflow as tf


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset without the thread that tunes it, unless its options say that it shall have one.

    An iterator that ends tells that thread so, and waits for it. But TensorFlow tells it before it sets the flag that
    the thread then looks at (CancellationManager::StartCancelWithStatus, and Model::OptimizeLoop), so now and then it
    goes back to sleep, for as long as the iterator has lived, up to a minute. On a parameter server's worker nothing
    else is answered meanwhile. `AUTOTUNE` then means a thread for each core, up to 16
    (`Options.autotune.initial_parallelism`), and prefetching is tuned all the same. The iterators with which
    tf.distribute feeds accelerators have such threads of their own, which no option reaches.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in a graph only what Python knows of the options is found: all that we want
        wanted = dataset.options().autotune.enabled
    if wanted is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
