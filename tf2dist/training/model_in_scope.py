"""Moves a model that was made outside of the scope of its strategy into it."""

from __future__ import annotations

import logging

import keras
import tensorflow as tf

from tf2dist.compat.model import strategy_of
from tf2dist.compat.strategy_scope import strategy_in_scope
from tf2dist.compat.variables_in_scope import move_tables, move_variables, unmovable
from tf2dist.errors import UsageError
from tf2dist.runtime import session
from tf2dist.training.model_validation import VARIABLES_ELSEWHERE

_log = logging.getLogger("tf2dist")


def move_into_scope(model: keras.Model) -> None:
    """Moves what was made outside of the scope of the model's strategy, or of this job's if the model was made in none.

    Weights, the optimizer's state and the states of random numbers are kept. In a multi-worker job the first peer's
    values are everybody's. Without a strategy the model stays as it is.

    Raises:
      UsageError: the model was made for another strategy than this job's, or holds what cannot be moved.
    """
    own, joined = strategy_of(model), session.current().strategy
    if own is not None and joined is not None and own is not joined:
        raise UsageError(
            f"the model was made outside of the scope of this job's strategy ({type(joined).__name__}), in that of "
            f"another one ({type(own).__name__}); make and compile it inside of the job's `with strategy.scope():`"
        )
    strategy = own or joined or strategy_in_scope()
    if strategy is None:
        return
    on_servers = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    fixed = unmovable(model, tables_stay=not on_servers) if own is None else None
    if fixed:
        raise UsageError(
            f"the model was made outside of the scope of this job's strategy ({type(strategy).__name__}), and {fixed} "
            "cannot be moved there; make and compile it inside of `with strategy.scope():`"
        )
    if own is None and isinstance(strategy, VARIABLES_ELSEWHERE) and _compiled_for_a_gpu(model):
        model.jit_compile = False
        name = type(strategy).__name__
        _log.info("tf2dist: %s is not compiled by XLA, which cannot read the variables of %s", model.name, name)
    if own is None and on_servers and (tables := move_tables(model, strategy)):
        _log.info("tf2dist: %s was made outside of the scope of its servers: %d tables were moved", model.name, tables)
    if moved := move_variables(model, strategy):
        name = type(strategy).__name__
        _log.info("tf2dist: %s was made outside of the scope of %s: %d variables were moved", model.name, name, moved)


def _compiled_for_a_gpu(model: keras.Model) -> bool:
    """Has Keras perhaps chosen XLA, as it does outside of every scope where TensorFlow lists a GPU, a hidden one too?

    What the user has asked for, "auto" or True, it does not keep.
    """
    return model.compiled and model.jit_compile is True and bool(tf.config.list_physical_devices("GPU"))
