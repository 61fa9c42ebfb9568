"""Checks whether a loss can be computed from slices of a batch; what is not Keras's own is tried on three rows."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat import global_batch_loss
from tf2dist.compat import model as keras_model
from tf2dist.compat.stateless_scope import OverlayScope, compute_output_spec
from tf2dist.compat.strategy_internals import worker_count
from tf2dist.errors import UsageError
from tf2dist.execution.keras_train_step import KerasTrainStep
from tf2dist.parameter_server.options import ParameterServer
from tf2dist.training.trial_rows import made_up

_CUT = 1
_SIZES = [0.2, 4.0, 1.0]  # rows that are alike would show nothing
_DRAWS = 2  # of rows: by accident one may show nothing either


def slices_of_update(strategy: tf.distribute.Strategy, options: ParameterServer) -> int:
    """Returns the number of slices that each global batch is cut into."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy) and options.update == "sync":
        return worker_count(strategy) - options.backup_workers
    return strategy.num_replicas_in_sync


def check_loss(step: KerasTrainStep, spec, options: ParameterServer) -> None:
    """Raises ValueError for a loss of a batch that cannot be had from slices of it.

    Losses of Keras are known. What else a model computes is taken for a mean over examples, and here it is tried
    whether it is one; if a loss that a layer adds is a sum over examples instead, the step is told. The rows are made
    up: where they make no sense to the model, or where there are random numbers in the loss, nothing is found out.
    """
    model = step.model
    together = (
        options.update != "sync"
        and model.jit_compile is not True
        and global_batch_loss.exchange_rows(model.distribute_strategy)
    )
    if not _has_unknown_loss(model, together) and not _has_outputs_without_rows(model, spec):
        return
    refused = ""
    # What a model raises for rows that make no sense to it can be anything; training will raise what is to be seen.
    with tf.device("/cpu:0"), OverlayScope((), model.variables), contextlib.suppress(Exception):
        for draw in range(_DRAWS):
            refused = refused or _try(step, made_up(spec, _SIZES, draw), together)
    if refused:
        raise UsageError(refused)


def _has_unknown_loss(model: keras.Model, together: bool) -> bool:
    """Whether the model has a loss, or a layer that may add one, that might not be a mean over examples."""
    losses = [c for c in keras_model.compiled_losses(model) if not global_batch_loss.is_of_each_example(c)]
    layers = [model, *keras_model.layers_of(model)]
    parts = [part for layer in layers for part in (layer, layer.activity_regularizer) if part is not None]
    has_own = not all(map(keras_model.is_of_keras, parts))
    return keras_model.overrides_compute_loss(model) or bool(losses) or has_own


def _has_outputs_without_rows(model: keras.Model, spec) -> bool:
    """Are there outputs of one number for each example, f[n], of whose losses Keras takes the mean by itself?"""
    with contextlib.suppress(Exception):  # what is wrong with the data is said elsewhere
        return any(len(each.shape) == 1 for each in tf.nest.flatten(output_spec(model, spec)))
    return False


def output_spec(model: keras.Model, spec) -> Any:
    """The specs of the outputs for batches of this spec, as `tf.TensorSpec`s."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
    symbolic = tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), x)
    outputs = compute_output_spec(model, symbolic, training=False)
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), outputs)


def _try(step: KerasTrainStep, batch, together: bool) -> str:
    """Why the loss cannot be computed from slices; nothing if it can, or if that is not to be found out."""
    close = functools.partial(np.isclose, rtol=2e-3 if computes_in_16_bits(step.model) else 3e-5, atol=1e-6)
    first, rest = (
        tf.nest.map_structure(lambda t, part=part: t[part], batch) for part in (slice(_CUT), slice(_CUT, None))
    )
    fraction = _CUT / len(_SIZES)

    def loss_of(*slices):
        weighted = [(rows, tf.constant(w, tf.float32)) for rows, w in slices]
        loss, added = step.try_slices(weighted, leave_out=together)
        return float(loss), [{key: float(tf.reduce_sum(v)) for key, v in each.items()} for each in added]

    whole, (added,) = loss_of((batch, 1.0))
    cut, (one, other) = loss_of((first, fraction), (rest, 1 - fraction))
    for key in added.keys() & one.keys() & other.keys():
        is_mean = close(added[key], fraction * one[key] + (1 - fraction) * other[key])
        if not is_mean and close(added[key], one[key] + other[key]):
            step.summed_layer_losses.add(key)
    if step.summed_layer_losses:
        whole, _ = loss_of((batch, 1.0))
        cut, _ = loss_of((first, fraction), (rest, 1 - fraction))
    turned, _ = loss_of((tf.nest.map_structure(lambda t: t[::-1], batch), 1.0))
    if close(whole, cut) or not close(whole, turned):
        return ""
    return (
        f"the loss of a batch is not made of the losses of its parts: {_suspects(step.model, added)} must be a mean "
        "over examples to be computed on several replicas or workers; use a loss with a value for each example, or "
        "strategy one"
    )


def _suspects(model: keras.Model, added) -> str:
    """Names the parts of the model that may have computed the loss, for the error message."""
    found = [f"compute_loss of {type(model).__name__}"] if keras_model.overrides_compute_loss(model) else []
    found += [c.name for c in keras_model.compiled_losses(model) if not global_batch_loss.is_of_each_example(c)]
    layers = {id(layer): layer.name for layer in [model, *keras_model.layers_of(model)]}
    found += [f"the loss that {name} adds" for key, name in layers.items() if any(key == owner for owner, _ in added)]
    # Keras multiplies the mean loss of such outputs by the mean of the weights.
    return " or ".join(found) or "that of outputs f[n], with sample weights (f[n, 1] would do),"


def computes_in_16_bits(model: keras.Model) -> bool:
    """Whether any layer computes in float16 or bfloat16."""
    return bool({layer.compute_dtype for layer in keras_model.layers_of(model)} & {"float16", "bfloat16"})
