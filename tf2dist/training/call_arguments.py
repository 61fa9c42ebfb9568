"""What `fit`, `evaluate` and `predict` have in common: data of a finite length, limits, and peers that call alike."""

from __future__ import annotations

import logging
from typing import Any

import keras

from tf2dist.errors import UsageError
from tf2dist.input.data_adapter import FiniteDataAdapter
from tf2dist.input.make_adapter import make_finite_adapter
from tf2dist.runtime import peer_arguments, session
from tf2dist.training import data_validation
from tf2dist.training.prepared_model import PreparedModel

_log = logging.getLogger("tf2dist")


def one_pass(
    data: Any, batch_size: int | None, steps: int | None, name: str, *, in_order: bool = False
) -> FiniteDataAdapter:
    """The adapter of data that `evaluate` and `predict` read; `name` is what a user calls the steps."""
    progress = session.current().progress
    adapter = make_finite_adapter(data, batch_size=batch_size, steps=steps, progress=progress, in_order=in_order)
    most = limited(adapter.steps, keras.config.max_steps_per_epoch(), name)
    if most is not None and most != adapter.steps:
        adapter = adapter.first(most)
    data_validation.finite_steps(adapter.steps, name)
    return adapter


def check_same_for_peers(prepared: PreparedModel, function: str, **lengths: str | int | None) -> None:
    """Raises UsageError in all peers of a job unless all make this call with these lengths; no peer waits then."""
    found = peer_arguments.difference(prepared.strategy, {"function": function, **lengths})
    if found is None:
        return
    name, who = found
    if name == "function":
        raise UsageError(f"the peers of a job call fit, evaluate and predict together, found {who}")
    if name == "callbacks":
        raise UsageError(
            f"all peers of a job need the same callbacks that save and restore, found {who}; give them to every peer: "
            "the first one alone writes"
        )
    raise UsageError(
        f"{function} needs the same {name} in all peers of a job, found {who}; give all of them as much data and the "
        "same arguments"
    )


def limited(given: int | None, limit: int | None, name: str) -> int | None:
    """What was given, if it is not beyond the limit of trial runs, as Keras has it (KERAS_MAX_EPOCHS, say)."""
    if not limit or (given is not None and given <= limit):
        return given
    _log.warning("%s is limited to %d by keras.config", name, limit)
    return limit
