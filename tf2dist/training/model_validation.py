"""Checks of models: what cannot be trained is refused before anything runs, with the reason and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat.model import check_loss_spec, compiled_metrics, layers_of, overridden_step
from tf2dist.compat.optimizers import wrapped_optimizers
from tf2dist.compat.stateless_scope import compute_output_spec
from tf2dist.compat.strategy_internals import has_variable_partitioner, worker_count
from tf2dist.errors import TrainingError, UsageError
from tf2dist.input.data_adapter import DataAdapter
from tf2dist.parameter_server.options import ParameterServer

VARIABLES_ELSEWHERE = (tf.distribute.ParameterServerStrategy, tf.distribute.experimental.CentralStorageStrategy)
_MIRRORED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def check_compiled(model: keras.Model) -> None:
    """Raises ValueError for a model that was not compiled."""
    if not isinstance(model, keras.Model):
        raise UsageError(f"model must be a keras.Model, found {type(model).__name__}")
    if not model.compiled:
        raise UsageError("the model is not compiled: call model.compile(optimizer, loss) before tf2dist.fit")


def check_before_building(model: keras.Model) -> None:
    """Raises ValueError for a model that its strategy cannot train."""
    strategy = model.distribute_strategy
    if model.compiled and model.run_eagerly:
        raise UsageError("the model is compiled with run_eagerly=True; steps run as graphs here, compile it without")
    if has_variable_partitioner(strategy):
        raise UsageError(
            "the strategy has a variable_partitioner, and Keras 3 cannot train a variable in parts; make the strategy "
            "without one and use tf2dist.layers.ShardedEmbedding for large tables"
        )
    if model.compiled and model.jit_compile is True and isinstance(strategy, VARIABLES_ELSEWHERE):
        raise UsageError(
            "the model is compiled with jit_compile=True, but its strategy keeps the variables on other devices, "
            "which XLA cannot read; compile it without, or use a strategy that keeps them with the replicas"
        )
    if own := overridden_step(model):
        check_custom_step(model, own)


def check_custom_step(model: keras.Model, own: str) -> None:
    """Raises ValueError for a model that overrides the method `own`, on a strategy that needs Keras's."""
    strategy = model.distribute_strategy
    if isinstance(strategy, VARIABLES_ELSEWHERE):
        raise UsageError(
            f"{type(model).__name__} overrides {own}, which keeps its metrics in variables that several at once cannot "
            f"update under {type(strategy).__name__} without losing counts; use compile(loss, metrics) and "
            "compute_loss, or strategy one, mirrored or multiworker"
        )
    if strategy.num_replicas_in_sync > 1 and tf.config.functions_run_eagerly():
        raise UsageError(
            f"{type(model).__name__} overrides {own}, and tf.config.run_functions_eagerly(True) is set: how the losses "
            f"of {strategy.num_replicas_in_sync} replicas count is found in the step's graph; debug it on strategy one"
        )


def check_options(model: keras.Model, options: ParameterServer) -> None:
    """Raises ValueError for what workers that update asynchronously, or together, cannot do."""
    strategy = model.distribute_strategy
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy) or not model.compiled:
        return
    accumulates = [o for o in wrapped_optimizers(model.optimizer) if o.gradient_accumulation_steps]
    if accumulates and options.update == "async" and (worker_count(strategy) > 1 or options.local_steps > 1):
        raise UsageError(
            f"gradient_accumulation_steps={accumulates[0].gradient_accumulation_steps} keeps unfinished sums on the "
            "servers, which asynchronous workers would mix; use a larger batch, or "
            'parameter_server=tf2dist.ParameterServer(update="sync")'
        )
    if options.update == "sync" and worker_count(strategy) - options.backup_workers > 1:
        kind = keras.layers.BatchNormalization
        synchronized = [layer for layer in layers_of(model) if isinstance(layer, kind) and layer.synchronized]
        if synchronized:
            raise UsageError(
                f"layer {synchronized[0].name} is a BatchNormalization(synchronized=True), and synchronous workers "
                "exchange gradients alone; make it without, or use strategy multiworker"
            )


def check_loss_without_targets(model: keras.Model, x, y_pred) -> None:
    """Raises ValueError for a loss that needs targets, where the data has none."""
    try:
        check_loss_spec(model, x, None, y_pred, None)
    except (ValueError, TypeError, AttributeError):  # whatever it has done with None
        raise UsageError(
            "the model was compiled with a loss that needs targets, and the data has none: give y, or data of (x, y)"
        ) from None


def check_after_building(model: keras.Model) -> None:
    """Raises ValueError for variables outside of the scope."""
    extended = model.distribute_strategy.extended
    if isinstance(model.distribute_strategy, (*VARIABLES_ELSEWHERE, *_MIRRORED)):
        optimizer = model.optimizer if model.compiled else None
        kinds = {"model": model.weights, "optimizer": optimizer.variables if optimizer else ()}
        for owner, variables in kinds.items():
            outside = [v.path for v in variables if not extended.variable_created_in_scope(v.value)]
            if outside:
                raise UsageError(
                    f"the {owner}'s variable {outside[0]} was made outside of the strategy's scope; make model and "
                    "optimizer inside of `with strategy.scope():`"
                )


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


@contextlib.contextmanager
def data_may_fail(data: DataAdapter) -> Iterator[None]:
    """Raises what was wrong with the data in place of TensorFlow's error; a TrainingError if it has ended early."""
    try:
        yield
    except tf.errors.OpError as error:
        data.raise_failure()
        if not isinstance(error, tf.errors.OutOfRangeError):
            raise
        raise TrainingError(
            "the dataset ran out early: it has fewer batches than it says or than steps asks for, or none at all"
        ) from None


def check_has_end(data: DataAdapter, name: str) -> None:
    """Raises ValueError for data that is endless or empty; `name` is the argument that bounds it."""
    if not data.steps:
        raise UsageError(f"the data is endless or empty: say how much of it to use with {name}")
