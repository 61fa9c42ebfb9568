"""Parts of a compiled Keras model that have no public name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import keras
import tensorflow as tf

from tf2dist.compat.stateless_scope import compute_output_spec
from tf2dist.errors import UsageError

_STEP_METHODS = ("train_step", "test_step")


def overridden_step(model: keras.Model) -> str | None:
    """The first of Keras's step methods that the model overrides: "train_step", "test_step" or None."""
    return next((name for name in _STEP_METHODS if _overrides(model, name)), None)


def overrides_compute_metrics(model: keras.Model) -> bool:
    """Does the model say itself how metrics are updated?"""
    return _overrides(model, "compute_metrics")


def overrides_metrics_result(model: keras.Model) -> bool:
    """Does the model say itself what is logged of its metrics?"""
    return _overrides(model, "get_metrics_result")


def overrides_compute_loss(model: keras.Model) -> bool:
    """Does the model say itself what the loss is?"""
    return _overrides(model, "compute_loss")


def _overrides(model: keras.Model, name: str) -> bool:
    """Is a method another than Keras's? It may be one of the model's class, or have been set on the model itself."""
    return getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name)


def custom_step(model: keras.Model, batch) -> str | None:
    """Returns the method that makes a model's steps custom ones, or None for a model with Keras's own steps.

    That is a step method, or a `compute_metrics` whose logs have other names than the metrics: then Keras logs what it
    has returned for the last batch.

    Args:
      batch: of `keras.KerasTensor`s.
    """
    if (step := overridden_step(model)) or not overrides_compute_metrics(model):
        return step
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    names = []

    def logs(x, y, sample_weight):
        y_pred = call(model, x, training=False)
        names.append(set(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)))
        names.append(set(model.get_metrics_result()))

    compute_output_spec(logs, x, y, sample_weight)
    return None if names[0] == names[1] else "compute_metrics"


def compile_identity(model: keras.Model) -> tuple:
    """What a call of `compile` has made; other objects after the next call."""
    made = getattr(model, "optimizer", None), model._compile_loss, model._compile_metrics
    # Without a loss and metrics, and with the same optimizer, only the tracker of the loss is another.
    return *made, getattr(model, "_loss_tracker", None), model.distribute_strategy


def loss_tracker(model: keras.Model) -> keras.metrics.Metric:
    """The metric that holds the loss of a compiled model."""
    return model._loss_tracker


def all_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The optimizer given to `compile` and those that the model and the models in it hold, as one for a generator."""
    holders = [layer for layer in model._flatten_layers() if isinstance(layer, keras.Model)]
    held = [value for m in holders for value in (getattr(m, "optimizer", None), *vars(m).values())]
    for several in [value for value in held if isinstance(value, (list, tuple, dict))]:
        held += several.values() if isinstance(several, dict) else several
    return list({id(value): value for value in held if isinstance(value, keras.optimizers.Optimizer)}.values())


def has_optimizer(model: keras.Model) -> bool:
    """Was the model compiled with an optimizer? One that is not compiled lacks the attribute."""
    return getattr(model, "optimizer", None) is not None


def restored_variables(model: keras.Model) -> list[keras.Variable]:
    """All that `load_weights` of a built model may change."""
    return [*model.variables, *(v for optimizer in all_optimizers(model) for v in optimizer.variables)]


def saves_only_keras_variables(model: keras.Model) -> bool:
    """Does `save_weights` read Keras's variables alone? A `save_own_variables` of the user may store anything."""
    parts = [*model._flatten_layers(), *all_optimizers(model)]
    return all(is_of_keras(type(part).save_own_variables) for part in parts)


def finalize_restored(model: keras.Model) -> None:
    """Does what layers of Keras do when they have read their variables: `Normalization` makes its constants of them."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """The states of a model's random numbers, as of dropout, integers [2]: `save_weights` leaves them out."""
    states = [generator.state for layer in model._flatten_layers() for generator in layer._seed_generators]
    return list({id(state): state for state in states}.values())


def compiled_metrics(model: keras.Model) -> Any:
    """The metrics given to `compile`, as one metric; None without any."""
    return model._compile_metrics


def metrics_given_to_compile(model: keras.Model) -> list[keras.metrics.Metric]:
    """The objects that `compile` was given, which have variables before Keras has built the model's own list."""
    compiled = model._compile_metrics
    given = [] if compiled is None else tf.nest.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    return [metric for metric in given if isinstance(metric, keras.metrics.Metric)]


def is_of_keras(part: Any) -> bool:
    """Is the class of this object, or the module of this function, one of Keras's?"""
    return (getattr(part, "__module__", None) or "").startswith("keras.")


def is_function_of_a_batch(metric: keras.metrics.Metric) -> bool:
    """Whether the metric is the mean of a function whose values may not be one for each example.

    A function of the user's, or one of Keras's overlaps, whose sums run over the batch unless an axis is given.
    """
    function = getattr(metric, "_fn", None)
    function = getattr(function, "_fn", function)  # of a metric in a metric
    overlaps = (keras.losses.dice, keras.losses.tversky)
    is_overlap = isinstance(function, (keras.losses.Dice, keras.losses.Tversky)) or function in overlaps
    has_axis = may_be_axis_of_examples((getattr(metric, "_fn_kwargs", None) or {}).get("axis"))
    return function is not None and (is_overlap or has_axis or not is_of_keras(function))


def may_be_axis_of_examples(axis: Any) -> bool:
    """Is one of these axes the first one, or, counted from the end, perhaps the first one? None is no axis."""
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    return any(isinstance(each, int) and (each == 0 or each < -1) for each in axes)


def overrides_part_of_step(model: keras.Model) -> str | None:
    """The name of what Keras's `train_step` calls, and ours does not, and the model overrides; None for none."""
    for name in ("trainable_weights", "reset_metrics"):
        own = getattr(type(model), name)
        if not is_of_keras(own.fget if isinstance(own, property) else own):
            return name
    return None


def stateful_layer(model: keras.Model) -> keras.Layer | None:
    """A recurrent layer that was made with `stateful=True`: a row begins where that of the batch before has ended."""
    return next((layer for layer in layers_of(model) if getattr(layer, "stateful", False) is True), None)


def has_parts_of_others(model: keras.Model) -> bool:
    """Whether a part of the model that sees batches is not Keras's, or may compare the examples of a batch.

    Not those of this project, and not the steps.
    """
    layers = [model, *layers_of(model)]
    operations = [o for layer in layers if isinstance(layer, keras.Model) for o in getattr(layer, "operations", ())]
    metrics = compiled_metrics(model).metrics if compiled_metrics(model) is not None else []
    return (
        not all(is_of_keras(layer) or type(layer).__module__.startswith("tf2dist.") for layer in layers)
        or any(map(_may_be_of_others, layers))
        or not all(isinstance(operation, keras.Layer) for operation in operations)
        or not all(is_of_keras(getattr(loss, "fn", loss)) and is_of_keras(loss) for loss in compiled_losses(model))
        or overrides_compute_loss(model)
        or overrides_compute_metrics(model)
        or any(is_function_of_a_batch(metric) or not is_of_keras(metric) for metric in metrics)
    )


def _may_be_of_others(layer: keras.Layer) -> bool:
    """Does a layer of Keras call functions of the user's, or go along an axis that may be that of the examples?"""
    if isinstance(layer, (keras.layers.Lambda, keras.layers.TFSMLayer, keras.layers.JaxLayer)):
        return True
    functions = [getattr(layer, name, None) for name in ("activation", "recurrent_activation")]
    has_own = any(function is not None and not is_of_keras(function) for function in functions)
    return has_own or may_be_axis_of_examples(getattr(layer, "axis", None))


def compiled_losses(model: keras.Model) -> list[keras.losses.Loss]:
    """The losses given to `compile`, of a model that is built."""
    found = model._compile_loss._flat_losses if model._compile_loss is not None else None
    return [each.loss for each in found or ()]


def has_compiled_loss(model: keras.Model) -> bool:
    """Was the model compiled with a loss?"""
    return model._compile_loss is not None


def output_loss_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """The metrics that hold the losses of several outputs."""
    return model._compile_loss.metrics if model._compile_loss is not None else []


def flat_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results by name without dictionaries inside, as Keras sorts and flattens them: a metric may have several."""
    flat = {}
    for name, value in sorted(results.items(), key=lambda item: str(item[0])):
        flat |= flat_results(value) if isinstance(value, Mapping) else {name: value}
    return flat


def all_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """All metrics that a model has, also those that a `metrics` of its own does not list."""
    found = [*model.metrics, *keras.Model.metrics.fget(model)]
    return list({id(metric): metric for metric in found}.values())


def single_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """As `all_metrics`, with those of `compile` one by one, whose variables come in the same order."""
    compiled = model._compile_metrics
    return [m for metric in all_metrics(model) for m in (metric.metrics if metric is compiled else [metric])]


def parts_of_metric(metric: keras.metrics.Metric) -> tuple[list[keras.Variable], list[keras.metrics.Metric]]:
    """The variables of a metric without those of metrics in it, and these metrics."""
    return list(metric._variables), list(metric._metrics)


def layer_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Metrics that layers update by themselves while the model is called."""
    known = [model._loss_tracker, model._compile_metrics, *output_loss_metrics(model)]
    return [m for m in model.metrics if not any(m is k for k in known)]


def call(model: keras.Model, x, *, training: bool):
    """The outputs for inputs `x`; `training` is passed on to a model that takes it."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def compute_loss(model: keras.Model, x, y, y_pred, sample_weight, *, training: bool):
    """The loss as Keras's own train step computes it, also of a `compute_loss` that takes no `training`.

    Raises:
      UsageError: the model was compiled without a loss, and no layer adds one.
    """
    try:
        return model._compute_loss(x, y, y_pred, sample_weight, training=training)
    except ValueError as error:
        if not str(error).startswith("No loss to compute"):
            raise
        raise UsageError(
            "the model has no loss: it was compiled without one, and none of its layers adds one; give "
            "model.compile a loss"
        ) from None


def build_from_specs(model: keras.Model, batch) -> None:
    """Makes the variables of metrics and optimizer, from a batch of `keras.KerasTensor`s."""
    model._symbolic_build(data_batch=batch)


def check_loss_spec(model: keras.Model, x, y, y_pred, sample_weight) -> None:
    """Raises what the loss would raise for arguments of these shapes."""
    if model._compile_loss is None and not overrides_compute_loss(model):
        return  # layers add the loss
    compute_output_spec(model._compute_loss, x, y, y_pred, sample_weight=sample_weight, training=False)


def logs_in_order(model: keras.Model, logs: Mapping[str, Any]) -> Any:
    """Logs as Keras returns them where no dictionary is asked for: in the metrics' order, one by itself."""
    return model._flatten_metrics_in_order(logs)


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """All layers of a model, also those inside of layers."""
    return list(model._flatten_layers())


def own_states(layer: keras.Layer, dtypes: Collection[str]) -> list[keras.Variable]:
    """Statistics of these dtypes and states of random numbers of a layer itself, and not of the layers in it."""
    statistics = [v for v in layer._non_trainable_variables if not v.trainable and v.dtype in dtypes]
    return [*statistics, *(generator.state for generator in layer._seed_generators)]


def strategy_of(model: keras.Model) -> tf.distribute.Strategy | None:
    """The strategy in whose scope the model was made; None if it was made in none, whatever the scope is now."""
    return model._distribute_strategy


def initial_epoch(model: keras.Model) -> int:
    """The epoch that `keras.callbacks.BackupAndRestore` has restored; 0 without one."""
    return model._initial_epoch or 0


def forget_initial_epoch(model: keras.Model) -> None:
    """What an earlier call of `fit` has restored does not count for the next one."""
    model._initial_epoch = 0
