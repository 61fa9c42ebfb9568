"""Counters that lose nothing when several workers add to them at once."""

from __future__ import annotations

from collections.abc import Iterable

import keras
import tensorflow as tf

from tf2dist.compat.optimizers import wrapped_optimizers
from tf2dist.compat.stateless_scope import holds_back


class AtomicCounter(keras.Variable):
    """A `keras.Variable` whose `assign_add` and `assign_sub` are one operation on the server that holds it.

    `keras.Variable.assign_add` reads, adds and writes, so two workers of a parameter server job can both write the
    same sum (parameter servers are not supported upstream: keras#18624).
    """

    def assign_add(self, value):
        if holds_back(self):
            return super().assign_add(value)
        self.value.assign_add(tf.cast(value, self.dtype))
        return self.value

    def assign_sub(self, value):
        if holds_back(self):
            return super().assign_sub(value)
        self.value.assign_sub(tf.cast(value, self.dtype))
        return self.value


def add_atomically(variables: Iterable[keras.Variable]) -> None:
    """Makes each an `AtomicCounter`, but for those of a class of the user's own.

    `keras.Variable` has a `__class__` like any Python object, so the counter changes its behaviour and keeps its
    place, name and value in everything that already refers to it: checkpoints, schedules, `optimizer.variables`.
    """
    for variable in variables:
        if type(variable) is keras.Variable:
            variable.__class__ = AtomicCounter


def count_atomically(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes a built optimizer count its updates with an `AtomicCounter`, in the same variable."""
    add_atomically(counted._iterations for counted in wrapped_optimizers(optimizer))
