"""Checks of models: what cannot be trained is refused before anything runs, with the reason and what to do."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from tf2dist.compat.model import check_loss_spec, layers_of, overridden_step, overrides_part_of_step, stateful_layer
from tf2dist.compat.optimizers import wrapped_optimizers, writes_more_than_steps
from tf2dist.compat.strategy_internals import has_variable_partitioner, worker_count
from tf2dist.errors import UsageError
from tf2dist.parameter_server.options import ParameterServer

VARIABLES_ELSEWHERE = (tf.distribute.ParameterServerStrategy, tf.distribute.experimental.CentralStorageStrategy)
_MIRRORED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def check_compiled(model: keras.Model) -> None:
    """Raises ValueError for a model that was not compiled."""
    if not isinstance(model, keras.Model):
        raise UsageError(f"model must be a keras.Model, found {type(model).__name__}")
    if not model.compiled:
        raise UsageError("the model is not compiled: call model.compile(optimizer, loss) before tf2dist.fit")


def check_before_building(model: keras.Model, options: ParameterServer) -> None:
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
    _check_stateful(model, options)
    if own := overridden_step(model):
        check_custom_step(model, own, options)


def check_parts_of_step(model: keras.Model) -> None:
    """Raises ValueError for what Keras's own step calls, and that of several replicas or workers does not."""
    instead = {"trainable_weights": "set `trainable` of layers", "reset_metrics": "leave it to the metrics"}
    if own := overrides_part_of_step(model):
        raise UsageError(
            f"{type(model).__name__} overrides {own}, which only one device does without a train_step of your own: "
            f"{instead[own]}, or use strategy one"
        )


def _check_stateful(model: keras.Model, options: ParameterServer) -> None:
    """Raises ValueError for states that go from a batch to the next one, where another device may compute that."""
    layer, strategy = stateful_layer(model), model.distribute_strategy
    if layer is None:
        return
    on_servers = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    shared = on_servers and (worker_count(strategy) > 1 or options.update == "sync")
    if shared or strategy.num_replicas_in_sync > 1:
        raise UsageError(
            f"layer {layer.name} was made with stateful=True: its rows go on where those of the batch before have "
            "ended, and other replicas or workers compute the next batch; use strategy one, or one asynchronous worker"
        )


def check_custom_step(model: keras.Model, own: str, options: ParameterServer) -> None:
    """Raises ValueError for a model that overrides the method `own`, where steps must be Keras's."""
    strategy = model.distribute_strategy
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        needs = ""
        if options.update == "sync":
            needs = 'update="sync" joins the gradients of several workers before any is applied'
        elif options.local_steps > 1:
            needs = f"local_steps={options.local_steps} makes updates on copies of the weights"
        elif strategy.num_replicas_in_sync > 1:
            needs = f"the {strategy.num_replicas_in_sync} devices of each worker compute each a part of its batch"
        if needs:
            why = {
                "train_step": "",
                "test_step": ", and train_step of such a model runs as it is, too",
            }.get(own, ", whose logs are no metrics, so that train_step runs as it is")
            raise UsageError(
                f"{type(model).__name__} overrides {own}{why}: such a step applies its gradients itself, and {needs}; "
                "use compile(loss, metrics) and compute_loss, workers with one device and asynchronous updates, or "
                "strategy multiworker"
            )
    if strategy.num_replicas_in_sync > 1 and tf.config.functions_run_eagerly():
        raise UsageError(
            f"{type(model).__name__} overrides {own}, and tf.config.run_functions_eagerly(True) is set: how the losses "
            f"of {strategy.num_replicas_in_sync} replicas count is found in the step's graph; debug it on strategy one"
        )


def check_optimizers_of_custom_step(model: keras.Model, optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
    """Raises ValueError for what several workers cannot update at once, each by a step of the user's own."""
    strategy = model.distribute_strategy
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy) or worker_count(strategy) == 1:
        return
    constrained = [v.path for v in model.trainable_variables if v.constraint is not None]
    whole = [type(o).__name__ for each in optimizers for o in wrapped_optimizers(each) if writes_more_than_steps(o)]
    if constrained or whole:
        what = f"{constrained[0]} has a constraint" if constrained else f"{whole[0]} keeps sums, averages or scales"
        raise UsageError(
            f"{type(model).__name__} has a step of its own, and {what}, which several workers would read and write at "
            "once: use one worker, compile(loss, metrics) and compute_loss, or strategy multiworker"
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
