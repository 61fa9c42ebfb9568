"""Variables and lookup tables of a Keras model that was made outside of a strategy's scope, made again inside of it.

A Keras variable makes its `tf.Variable` once, on the strategy whose scope it is made in, and there is no public way to
give it another (keras-team/keras#20585 shows what one strategy does with variables of another).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.ps_values import DistributedTable

from tf2dist.compat.model import (
    all_metrics,
    all_optimizers,
    layers_of,
    metrics_given_to_compile,
    restored_variables,
    seed_states,
)
from tf2dist.compat.optimizers import wrapped_optimizers

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_FORMER_TABLES = "_tf2dist_former_tables"  # an attribute of layers
# By what an optimizer knows its variables: dictionaries and sets of keys.
_KEYED = (
    "_trainable_variables_indices",
    "_var_to_optimizer_idx",
    "_exclude_from_weight_decay",
    "_exclude_from_weight_decay_cache",
)


def unmovable(model: keras.Model, *, tables_stay: bool) -> str | None:
    """What the model's layers hold that only TensorFlow knows, as "random of layer noise"; None if nothing.

    Args:
      tables_stay: whether lookup tables can stay where they are; else `move_tables` moves those that are attributes.
    """
    fixed: tuple[type, ...] = (tf.Variable, tf.random.Generator)
    if not tables_stay:
        fixed = (*fixed, tf.lookup.StaticHashTable, tf.lookup.experimental.DenseHashTable)
    for layer in layers_of(model):
        for name, value in _attributes(layer):
            if _is_table(value):
                continue
            values = value.values() if isinstance(value, Mapping) else value
            held = values if isinstance(values, (Sequence, type({}.values()))) else [value]
            if any(isinstance(each, fixed) for each in held):
                return f"{name} of layer {layer.name}"
    return None


def move_tables(model: keras.Model, strategy: tf.distribute.ParameterServerStrategy) -> int:
    """Makes every lookup table again inside of the strategy's scope, where it is made on each worker, too.

    A worker cannot read a table that is in the coordinator's memory. Returns how many there were.
    """
    moved = 0
    for layer in layers_of(model):
        for name, table in [(name, value) for name, value in _attributes(layer) if _is_table(value)]:
            if isinstance(table, DistributedTable):
                continue
            content = tf.lookup.KeyValueTensorInitializer(*table.export(), table.key_dtype, table.value_dtype)
            with strategy.scope():
                setattr(layer, name, tf.lookup.StaticHashTable(content, table._default_value))
            # Datasets that were mapped by the layer read the old one, which would be gone with its last reference.
            vars(layer).setdefault(_FORMER_TABLES, []).append(table)
            moved += 1
    return moved


def _attributes(layer: keras.Layer) -> list[tuple[str, Any]]:
    """The layer's attributes, without those by which TensorFlow and we keep account of the others."""
    return [(name, value) for name, value in vars(layer).items() if not name.startswith(("_self_", _FORMER_TABLES))]


def _is_table(value: Any) -> bool:
    return isinstance(value, tf.lookup.StaticHashTable)


def move_variables(model: keras.Model, strategy: tf.distribute.Strategy) -> int:
    """Makes every variable that is outside of the strategy's scope again inside of it, with its value.

    Those of the model, its random numbers and metrics, and its optimizers. An optimizer's variable for a weight goes
    where the weight is. Returns how many there were.
    """
    in_scope = strategy.extended.variable_created_in_scope
    return _make_again(model, strategy, lambda v: not in_scope(v._value), lambda variable: variable._value.numpy())


def make_anew(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Makes every variable of a model again, of which some are lost, without its value; as `move_variables` else.

    Weights are NaN until they are restored. Random numbers and metrics are as in the beginning.
    """
    generators = {id(g.state): g for layer in layers_of(model) for g in layer._seed_generators}

    def value_of(variable: keras.Variable) -> Any:
        if generator := generators.get(id(variable)):
            seed = generator._initial_seed  # without one, Keras draws it in this way, too
            return np.array([random.randint(1, 10**9) if seed is None else seed, 0], variable.dtype)
        unknown = float("nan") if variable.dtype in _FLOATS else 0
        return lambda shape, dtype: tf.fill(shape, tf.cast(unknown, dtype))

    _make_again(model, strategy, lambda variable: True, value_of)
    for metric in (*all_metrics(model), *metrics_given_to_compile(model)):
        metric.reset_state()


def parameter_servers_of(model: keras.Model) -> set[int]:
    """The numbers of the parameter servers that hold variables of a model or its optimizers."""
    values = [v._value for v in _variables(model) if v._value is not None]
    parts = [part for value in values for part in getattr(value, "variables", [value])]
    servers = [parameter_server_of(part.device) for part in parts]
    return {server for server in servers if server is not None}


def parameter_server_of(device: str) -> int | None:
    """The number of the parameter server that a device is of; None if it is of none."""
    found: Any = tf.DeviceSpec.from_string(device or "")
    return found.task if found.job == "ps" else None


def _variables(model: keras.Model) -> list[keras.Variable]:
    """Those of the model, its random numbers and metrics, and its optimizers, each once."""
    optimizers = [o for held in all_optimizers(model) for o in wrapped_optimizers(held)]
    metrics = [v for metric in (*all_metrics(model), *metrics_given_to_compile(model)) for v in metric.variables]
    found = [*restored_variables(model), *seed_states(model), *metrics, *(v for o in optimizers for v in o.variables)]
    return list({id(v): v for v in found}.values())


def _make_again(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    is_meant: Callable[[keras.Variable], bool],
    value_of: Callable[[keras.Variable], Any],
) -> int:
    optimizers = [o for held in all_optimizers(model) for o in wrapped_optimizers(held)]
    moving = [v for v in _variables(model) if v._value is not None and is_meant(v)]
    keys = [{o._var_key(v): v for v in model.variables} for o in optimizers]
    owned = {id(v) for o in optimizers for v in o.variables}
    if not moving and model._distribute_strategy is strategy:
        return 0
    with strategy.scope():
        for variable in sorted(moving, key=lambda v: id(v) in owned):  # weights first
            weight = _weight_of(variable, model.trainable_variables) if id(variable) in owned else None
            value = value_of(variable)
            # By an initializer it is made where it is placed, and its size is known before.
            initialize = variable._initialize_with_initializer if callable(value) else variable._initialize
            if weight is None:
                initialize(value)
            else:
                with strategy.extended.colocate_vars_with(weight._value):
                    initialize(value)
    for optimizer, known in zip(optimizers, keys, strict=True):
        optimizer._distribution_strategy = strategy
        for name in _KEYED:
            if kept := getattr(optimizer, name, None):
                setattr(optimizer, name, _with_new_keys(kept, {key: optimizer._var_key(v) for key, v in known.items()}))
    for layer in layers_of(model):
        if isinstance(layer, keras.Model):
            layer._distribute_strategy = strategy
            layer.train_function = layer.test_function = layer.predict_function = None  # traces of the old ones
    return len(moving)


def _weight_of(variable: keras.Variable, weights: Sequence[keras.Variable]) -> keras.Variable | None:
    """The weight that an optimizer's variable belongs to: Keras names it after the weight's path."""
    name = variable.path.rpartition("/")[2]
    named = [w for w in weights if name.startswith(w.path.replace("/", "_") + "_")]
    return max(named, key=lambda w: len(w.path), default=None)


def _with_new_keys(kept: Any, new: Mapping[Any, Any]) -> Any:
    if isinstance(kept, Mapping):
        return {new.get(key, key): value for key, value in kept.items()}
    return {new.get(key, key) for key in kept}
