"""Which parameter server a variable is on: all of a small model are together, large ones where the fewest bytes are."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import itertools
import types
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_SMALL = 1 << 15  # bytes; a smaller variable is with the other small ones, however many there are
_turn: contextvars.ContextVar[Iterator[int] | None] = contextvars.ContextVar("turn", default=None)


class ServerPlacement:
    """Chooses servers for variables as they are made.

    All are on the first server up to `together` bytes; then those of 32 KiB or more are on the server that has the
    fewest bytes, or on the first if it has hardly more. TensorFlow places variables in turn, whatever their sizes
    (`ParameterServerStrategyV2Extended._create_variable_round_robin` in
    tensorflow/python/distribute/parameter_server_strategy_v2.py): each update of a small model then takes messages to
    all servers and back, and is no single operation of one of them. (By bytes as TensorFlow 1's
    `GreedyLoadBalancingStrategy`.)

    Args:
      servers: how many there are.
      together: bytes; 0 to place all by their bytes.
    """

    def __init__(self, servers: int, together: int):
        self._bytes, self._together = [0] * servers, together
        self._unknown, self._collected = itertools.cycle(range(servers)), False

    def server_of(self, nbytes: int | None) -> int:
        """The server for one more variable of so many bytes; None if they are not known."""
        if (turn := _turn.get()) is not None:
            return next(turn) % len(self._bytes)
        if self._fits(nbytes or 0):
            return 0
        if nbytes is None:
            return next(self._unknown)
        least = min(self._bytes)
        return 0 if self._together and self._bytes[0] < least + _SMALL else self._bytes.index(least)

    def _fits(self, nbytes: int) -> bool:
        """Whether a variable is to be beside the others on the first server."""
        if not self._together:
            return False
        fits = sum(self._bytes) + nbytes <= self._together
        if not fits and not self._collected:
            gc.collect()  # models that nobody uses any more are in circles of references
            fits = sum(self._bytes) + nbytes <= self._together
        self._collected = not fits
        return fits or 0 < nbytes < _SMALL

    def take(self, server: int, variable: tf.Variable) -> None:
        """Counts the variable's bytes for as long as it lives."""
        nbytes = (variable.shape.num_elements() or 0) * variable.dtype.size
        self._bytes[server] += nbytes
        weakref.finalize(variable, self._add, server, -nbytes)

    def _add(self, server: int, nbytes: int) -> None:
        self._bytes[server] += nbytes


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """Inside, variables are on the servers in turn, from the first on: parts that are to be spread."""
    before = _turn.set(itertools.count())
    try:
        yield
    finally:
        _turn.reset(before)


def place_by_bytes(strategy: tf.distribute.ParameterServerStrategy, together: int) -> None:
    """Has a `ServerPlacement` choose servers for the variables of this strategy that are not to be beside others.

    Those are the variables of an optimizer that belong to a weight and have its shape.
    """
    extended: Any = strategy.extended
    placement, create_in_turn = ServerPlacement(extended._num_ps, together), extended._create_variable_round_robin

    def create(next_creator, **kwargs):
        server = placement.server_of(_nbytes(kwargs))
        extended._variable_count = server  # TensorFlow takes the remainder by the number of servers
        variable = create_in_turn(next_creator, **kwargs)
        placement.take(server, variable)
        return variable

    vars(extended)["_create_variable_round_robin"] = create


def _nbytes(arguments: dict[str, Any]) -> int | None:
    """The size of a variable that is to be made with these arguments of `tf.Variable`; None if it is not known."""
    value, shape, dtype = (arguments.get(name) for name in ("initial_value", "shape", "dtype"))
    if callable(value):
        value = _keras_variable(value) if shape is None else None
    elif value is not None and not isinstance(value, np.ndarray | tf.Tensor | tf.Variable):  # which may be large
        value = tf.convert_to_tensor(value, dtype)
    shape, dtype = shape if value is None else value.shape, dtype or getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return None
    elements = tf.TensorShape(shape).num_elements()
    return None if elements is None else elements * tf.as_dtype(dtype).size


def _keras_variable(initial_value: Any) -> keras.Variable | None:
    """The variable that a function of Keras's gives its first value.

    Keras says no shape (`_initialize_with_initializer` in keras/src/backend/tensorflow/core.py).
    """
    if not isinstance(initial_value, types.FunctionType):
        return None
    cells = dict(zip(initial_value.__code__.co_freevars, initial_value.__closure__ or (), strict=True))
    found = cells["self"].cell_contents if "self" in cells else None
    return found if isinstance(found, keras.Variable) else None
