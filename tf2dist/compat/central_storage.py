"""Variables of a `CentralStorageStrategy` that were made without an `aggregation`."""

from __future__ import annotations

import tensorflow as tf


def aggregate_by_default(strategy: tf.distribute.Strategy) -> None:
    """Lets replicas of a `CentralStorageStrategy` update variables that were made without an `aggregation`.

    Keras makes the state of Dropout, BatchNormalization and home-made counters with `aggregation="none"`; central
    storage then raises "You must specify an aggregation method" at the first update inside a replica (the same gap as
    in keras#20585, for this strategy). Statistics are averaged over the replicas; whole numbers are taken from the
    first.
    """
    extended = strategy.extended
    create = extended._create_variable

    def create_with_aggregation(next_creator, **kwargs):
        if kwargs.get("aggregation") in (None, tf.VariableAggregation.NONE):
            kwargs["aggregation"] = _natural_aggregation(kwargs)
        return create(next_creator, **kwargs)

    extended._create_variable = create_with_aggregation


def _natural_aggregation(kwargs) -> tf.VariableAggregation:
    dtype = kwargs.get("dtype")
    is_float = dtype is None or tf.as_dtype(dtype).is_floating
    return tf.VariableAggregation.MEAN if is_float else tf.VariableAggregation.ONLY_FIRST_REPLICA
