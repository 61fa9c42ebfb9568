"""Datasets without tf.data's tuning thread, so that their iterators end at once."""

from __future__ import annotations

import warnings

import tensorflow as tf


def without_autotune(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns autotuning off, unless the dataset's own options turn it on (`options.autotune.enabled = True`).

    An iterator that ends cancels its tuning thread and waits for it. TensorFlow sends that signal before it sets the
    flag that the thread checks (CancellationManager::StartCancelWithStatus, and Model::OptimizeLoop), so now and then
    the thread misses it and sleeps on for as long as the iterator has lived, up to a minute. On a worker of a
    parameter server job everything else waits meanwhile. Without autotuning `AUTOTUNE` means a thread for each core,
    up to 16 (`Options.autotune.initial_parallelism`), and prefetching is still tuned. The iterators with which
    tf.distribute feeds accelerators have such threads of their own, which no option reaches.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in a graph, options() sees what was set in Python; that is what we ask for
        wanted = dataset.options().autotune.enabled
    if wanted is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
