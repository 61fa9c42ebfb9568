"""Variables of metrics, of which replicas may hold parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf2dist.runtime import collectives


def set_variables(
    variables: Sequence[keras.Variable], values: Iterable[np.ndarray], strategy: tf.distribute.Strategy
) -> None:
    """Assigns values to metric variables.

    Of a copy per replica, which are added up when they are read, the first gets the value, and the others zero; where
    they are read as a mean all of them get it.
    """
    is_first_peer = collectives.peers(strategy)[1] == 0
    for variable, value in zip(variables, values, strict=True):
        first, *others = strategy.experimental_local_results(variable.value)
        alike = getattr(variable.value, "aggregation", None) is tf.VariableAggregation.MEAN
        first.assign(tf.cast(value if is_first_peer or alike else np.zeros_like(value), variable.dtype))
        for other in others:
            other.assign(tf.cast(value, variable.dtype) if alike else tf.zeros_like(other))
