"""A compiled model made ready to run on its strategy: built, traced, and kept for the next call."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf2dist import keras3
from tf2dist.dispatch import Local, Remote, dispatcher_for
from tf2dist.pace import Pace
from tf2dist.step import Steps

_VARIABLES_ELSEWHERE = (tf.distribute.ParameterServerStrategy, tf.distribute.experimental.CentralStorageStrategy)
_programs: weakref.WeakKeyDictionary[keras.Model, Program] = weakref.WeakKeyDictionary()


class Program:
    """A compiled model made ready to run on its strategy; kept, with its traces, until it is compiled anew."""

    def __init__(self, model: keras.Model, feed):
        self.strategy = model.distribute_strategy
        if model.jit_compile is True and isinstance(self.strategy, _VARIABLES_ELSEWHERE):
            raise ValueError(
                "the model is compiled with jit_compile=True, but its strategy keeps the variables on other devices, "
                "which XLA cannot read; compile it without, or use a strategy that keeps them with the replicas"
            )
        self.compiled = (model.optimizer, model._compile_loss, model._compile_metrics)
        with self.strategy.scope():
            _build(model, feed)
        self.steps = Steps(model)
        self.dispatcher: Local | Remote = dispatcher_for(self.strategy)
        if isinstance(self.dispatcher, Remote):
            keras3.count_atomically(model.optimizer)
        self.train = self.dispatcher.compile(self.steps)
        self._pace = Pace()

    @classmethod
    def of(cls, model: keras.Model, feed) -> Program:
        """The model's program, made at the first call."""
        if not getattr(model, "compiled", False):
            raise ValueError("the model is not compiled: call model.compile(optimizer, loss) before tf2dist.fit")
        known = _programs.get(model)
        compiled = (model.optimizer, model._compile_loss, model._compile_metrics)
        if known is None or any(a is not b for a, b in zip(known.compiled, compiled, strict=True)):
            known = _programs[model] = cls(model, feed)
        return known

    def pace(self, steps_per_execution: int | None) -> Pace:
        """A fixed pace, or the one that was found in earlier calls of `fit`."""
        return self._pace if steps_per_execution is None else Pace(steps_per_execution)

    def evaluation(self, feed):
        """A function that returns loss and metrics over every example of `feed`, and can be called again."""
        executions = self.dispatcher.evaluation(self.steps, feed)

        def evaluate() -> dict[str, float]:
            totals = Totals(self.steps)
            for more in executions():
                totals.add(more)
            return totals.logs()

        return evaluate


class Totals:
    """The totals of an epoch, summed on the host in float64, so that counts stay exact past 2**24."""

    def __init__(self, steps: Steps):
        self._steps = steps
        self._sums = [np.asarray(z, np.float64) for z in steps.zeros()]

    def add(self, totals: Sequence[np.ndarray]) -> None:
        self._sums = [s + t for s, t in zip(self._sums, totals, strict=True)]

    def logs(self) -> dict[str, float]:
        return self._steps.result(self._sums)


def _build(model: keras.Model, feed) -> None:
    """Makes every variable (weights, optimizer slots, metrics) before a function is traced.

    Under a strategy with workers a variable that is made while tracing would end up on a worker.
    """
    spec = feed.spec()
    model._symbolic_build(data_batch=tf.nest.map_structure(lambda s: _Shaped(s), spec))


class _Shaped:
    """Stands for a batch in `_symbolic_build`, which reads shape and dtype only."""

    def __init__(self, spec: tf.TensorSpec):
        self.shape, self.dtype = spec.shape, spec.dtype
