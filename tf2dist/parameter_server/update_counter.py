"""How many updates were applied: counted on a server, and what the optimizer's own counters are set to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf


class UpdateCounter:
    """Counts updates on a parameter server, by one operation each; exact whatever dies.

    An update is counted when all of its gradients have come to the servers, which then apply it without the worker. A
    worker that dies may all the same have told one counter of it and not the other; the optimizer's counters are then
    set to this one.
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy):
        with strategy.scope():
            self.variable = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="applied_updates")
        self._others: Sequence[tf.Variable] = ()
        self._before: list[int] = []

    def follow(self, counters: Sequence[tf.Variable]) -> None:
        """Sets the optimizer's counters, which go up by one an update."""
        self._others = counters

    @property
    def value(self) -> int:
        """Updates that were applied, counted from the beginning of the data."""
        return int(self.variable.numpy())

    def reset(self, value: int) -> None:
        """Sets the count."""
        self.variable.assign(value)

    def add(self, updates) -> None:
        """Counts `updates` i32[] more. On the worker."""
        with tf.device(self.variable.device):  # a constant is made where it is used
            self.variable.assign_add(tf.cast(updates, tf.int64))

    @contextlib.contextmanager
    def counted(self, arrived: Sequence[tf.Tensor], updates) -> Iterator[None]:
        """Inside, variables are written, and `updates` i32[] counted, when all of `arrived` is there, not before.

        On the worker; `arrived` are tensors on the servers.
        """
        with tf.device(self.variable.device):
            complete = tf.group(*arrived)  # each server tells the one with the counter, which tells all
        with tf.control_dependencies([complete]):
            self.add(updates)
            yield

    def snapshot(self) -> None:
        """Remembers all counts. Only while no update is under way."""
        self._before = [int(counter.numpy()) for counter in (self.variable, *self._others)]

    def correct_others(self) -> None:
        """Makes the optimizer's counters go up by as much as this one has since the snapshot."""
        applied = self.value - self._before[0]
        for counter, before in zip(self._others, self._before[1:], strict=True):
            counter.assign(before + applied)
