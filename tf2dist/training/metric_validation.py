"""Metrics whose state does not add up over replicas and workers are refused, once they were tried."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat.model import compiled_metrics
from tf2dist.compat.stateless_scope import compute_output_spec
from tf2dist.errors import UsageError


def check_metrics(model: keras.Model, spec) -> None:
    """Raises ValueError for metrics whose state does not add up.

    Tries those of other makers than Keras on two rows of zeros, from different states.
    """
    if compiled_metrics(model) is None:
        return
    metrics = [m for m in compiled_metrics(model).metrics if not type(m).__module__.startswith("keras.")]
    if not metrics:
        return
    for metric in metrics:
        # It may hold what an epoch has left, which is over when the next one or an evaluation begins.
        if any(np.any(keras.ops.convert_to_numpy(v)) for v in metric.stateless_reset_state()):
            raise UsageError(_no_sum_message(metric, "it does not begin at zero"))
    with tf.device("/cpu:0"), contextlib.suppress(tf.errors.OpError, TypeError):  # rows of zeros may make no sense
        _, y, weight = keras.utils.unpack_x_y_sample_weight(tf.nest.map_structure(_zeros, spec))
        symbolic = tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), spec)
        outputs = compute_output_spec(model, symbolic[0], training=False)
        y_pred = tf.nest.map_structure(_zeros, outputs)
        compiled = compiled_metrics(model)
        zeros = [np.zeros(v.shape, v.dtype) for v in compiled.variables]
        brought = compiled.stateless_update_state(zeros, y, y_pred, weight)
        for state in (2.0, 1000.0, -1000.0):
            begun = [z + z.dtype.type(state) for z in zeros]
            after = compiled.stateless_update_state(begun, y, y_pred, weight)
            apart = [not np.allclose(a, b + s) for a, b, s in zip(after, brought, begun, strict=True)]
            for metric in metrics:
                mine = {id(v) for v in metric.variables}
                if any(wrong and id(v) in mine for wrong, v in zip(apart, compiled.variables, strict=True)):
                    raise UsageError(_no_sum_message(metric, "what a batch brings depends on what came before"))


def _no_sum_message(metric: keras.metrics.Metric, why: str) -> str:
    return (
        f"the state of metric {metric.name} ({type(metric).__name__}) does not add up: {why}; replicas and workers "
        "each see a part of the data, so a metric must sum over it (keep sums and counts, and combine them in result)"
    )


def _zeros(spec):
    return tf.zeros([2 if d is None else d for d in spec.shape], spec.dtype)
