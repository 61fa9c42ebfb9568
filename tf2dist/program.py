"""A compiled model made ready to run on its strategy: built, traced, and kept for the next call."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import compute_output_spec

from tf2dist import checks, keras3
from tf2dist.dispatch import dispatcher_for
from tf2dist.own_step import OwnSteps, own_step
from tf2dist.pace import Pace
from tf2dist.parameter_server import ParameterServer
from tf2dist.step import Outputs, Steps

_programs: weakref.WeakKeyDictionary[keras.Model, Program] = weakref.WeakKeyDictionary()


class Program:
    """A compiled model made ready to run on its strategy; kept, with its traces, until it is compiled anew."""

    def __init__(self, model: keras.Model, options: ParameterServer):
        checks.before_building(model)
        checks.options_fit(model, options)
        self.model, self.options = model, options
        self.identity = _identity(model)
        self.strategy = checks.strategy_of(model)
        self.dispatcher = dispatcher_for(self.strategy, options)
        self._pace = Pace()
        self._steps: Steps | None = None
        self._fitting: list = []  # specs of data that have been found to fit

    @classmethod
    def of(cls, model: keras.Model, options: ParameterServer | None = None) -> Program:
        """The model's program, made at the first call.

        Args:
          options: None for those it has.
        """
        known = _programs.get(model)
        same = known is not None and all(a is b for a, b in zip(known.identity, _identity(model), strict=True))
        if known is not None and same and options in (None, known.options):
            return known
        options = options or (known.options if known else ParameterServer())
        _programs[model] = cls(model, options)
        return _programs[model]

    def fits(self, feed) -> None:
        """Makes every variable, and finds out whether the model can take this feed."""
        spec = feed.spec()
        if spec in self._fitting:
            return
        with self.strategy.scope():
            _build(self.model, spec)
        checks.after_building(self.model, spec)
        self._fitting.append(spec)

    def steps(self, feed) -> Steps:
        """The model's steps, made when it is trained or evaluated first."""
        self.fits(feed)
        if self._steps is None:
            self._steps = OwnSteps(self.model) if own_step(self.model) else Steps(self.model)
            if isinstance(self.strategy, tf.distribute.ParameterServerStrategy):
                keras3.count_atomically(self.model.optimizer)
        return self._steps

    @functools.cached_property
    def train(self) -> Any:
        """An execution of training steps."""
        assert self._steps is not None  # `steps` comes first
        return self.dispatcher.compile(self._steps)

    def pace(self, steps_per_execution: int | None) -> Pace:
        """A fixed pace, or the one that was found in earlier calls of `fit`."""
        return self._pace if steps_per_execution is None else Pace(steps_per_execution)

    def evaluate(self, feed, hooks: keras.callbacks.CallbackList) -> dict[str, float]:
        """Loss and metrics over every example of `feed`."""
        steps = self.steps(feed)
        hooks.on_test_begin()
        totals = Totals(steps)
        with checks.ran_out():
            for number, more in enumerate(self.dispatcher.evaluation(steps, feed)):
                hooks.on_test_batch_begin(number)
                totals.add(more)
                hooks.on_test_batch_end(number)
        logs = totals.logs()
        hooks.on_test_end(logs)
        return logs

    def predict(self, feed, hooks: keras.callbacks.CallbackList) -> Any:
        """The outputs for every example of `feed`, in its order: a structure of arrays f[n, ...]."""
        self.fits(feed)
        hooks.on_predict_begin()
        batches = []
        with checks.ran_out():
            for number, outputs in enumerate(self.dispatcher.prediction(Outputs(self.model), feed)):
                hooks.on_predict_batch_begin(number)
                batches.append(outputs)
                hooks.on_predict_batch_end(number, {"outputs": outputs})
        hooks.on_predict_end()
        return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *batches)


class Totals:
    """The totals of an epoch, summed on the host in float64, so that counts stay exact past 2**24."""

    def __init__(self, steps: Steps):
        self._steps = steps
        self.sums = [np.asarray(z, np.float64) for z in steps.zeros()]
        steps.begin()

    @property
    def nan(self) -> bool:
        """Has the loss become NaN?"""
        return bool(np.isnan(self.sums[0]))

    def add(self, totals: Sequence[np.ndarray]) -> None:
        self.sums = self._steps.combine(self.sums, totals)

    def logs(self) -> dict[str, float]:
        return self._steps.result(self.sums)


def _identity(model: keras.Model) -> tuple:
    """What a program was made for; when any of it is replaced, another program is made."""
    return getattr(model, "optimizer", None), model._compile_loss, model._compile_metrics, model.distribute_strategy


def _build(model: keras.Model, spec) -> None:
    """Makes every variable (weights, optimizer slots, metrics) before a function is traced.

    Under a strategy with workers a variable that is made while tracing would end up on a worker. Keras raises
    ValueError here for inputs and labels whose shapes the model and its loss cannot take.
    """
    batch = tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), spec)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    y_pred = compute_output_spec(model, x, training=False)
    if not model.compiled:
        return
    if y is not None:
        model._symbolic_build(data_batch=batch)
        if own_step(model) is None:
            compute_output_spec(model._compute_loss, x, y, y_pred, sample_weight=weight, training=False)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
