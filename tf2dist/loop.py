"""`fit` and `evaluate`: the outer loop, with the names and the meaning of `keras.Model.fit`, on any strategy."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist import keras3
from tf2dist.dispatch import Local, Remote, dispatcher_for
from tf2dist.feed import as_feed
from tf2dist.pace import Pace
from tf2dist.step import Steps

_VARIABLES_ELSEWHERE = (tf.distribute.ParameterServerStrategy, tf.distribute.experimental.CentralStorageStrategy)
_programs: weakref.WeakKeyDictionary[keras.Model, _Program] = weakref.WeakKeyDictionary()


class _Program:
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
    def of(cls, model: keras.Model, feed) -> _Program:
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
            totals = _Totals(self.steps)
            for more in executions():
                totals.add(more)
            return totals.logs()

        return evaluate


class _Totals:
    """The totals of an epoch, summed on the host in float64, so that counts stay exact past 2**24."""

    def __init__(self, steps: Steps):
        self._steps = steps
        self._sums = [np.asarray(z, np.float64) for z in steps.zeros()]

    def add(self, totals: Sequence[np.ndarray]) -> None:
        self._sums = [s + t for s, t in zip(self._sums, totals, strict=True)]

    def logs(self) -> dict[str, float]:
        return self._steps.result(self._sums)


def fit(
    model: keras.Model,
    data: Any,
    *,
    epochs: int = 1,
    steps_per_epoch: int | None = None,
    batch_size: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    validation_data: Any = None,
    validation_steps: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    initial_epoch: int = 0,
    steps_per_execution: int | None = None,
    verbose: str | int = "auto",
) -> keras.callbacks.History:
    """Trains a compiled model on the strategy in whose scope it was made.

    Every update uses one global batch, cut over the replicas; under a parameter server strategy every worker makes
    updates of its own, each from a whole global batch, and an epoch is `steps_per_epoch` updates whoever makes them.

    Args:
      model: compiled, made inside of `strategy.scope()`.
      data: `tf2dist.Examples`, a tuple of arrays `(x, y)` or `(x, y, sample_weight)` with `batch_size`, or a
        `tf.data.Dataset` of global batches (in a multi-worker job every peer must read it in the same order).
      epochs: the number of the epoch after the last one, as in Keras.
      steps_per_epoch: updates in an epoch; one pass over the data if not given. An endless dataset needs it.
      batch_size, shuffle, seed: for arrays: the examples in a global batch (32), a new order for each pass, and
        what the orders follow from.
      validation_data, validation_steps: evaluated after each epoch, into the logs as "val_...".
      callbacks: of Keras. Hooks for a batch fire once an execution, with the number of its last step.
      initial_epoch: the epoch to go on from; the data goes on from there too.
      steps_per_execution: steps in one call of a `tf.function`; chosen from the time they take if not given.
      verbose: 0, 1 or "auto": Keras's progress bar, "auto" on a terminal only.

    Returns:
      The history of each epoch's logs. `model.optimizer.iterations` equals the updates that were applied.

    Raises:
      ValueError: when the model is not compiled, or the data cannot be used.
    """
    feed = as_feed(data, batch_size=batch_size, shuffle=shuffle, seed=seed)
    per_epoch = steps_per_epoch or feed.steps
    if not per_epoch:
        raise ValueError("the data is endless or empty: say how long an epoch is with steps_per_epoch")
    program = _Program.of(model, feed)
    validate = None
    if validation_data is not None:
        validate = program.evaluation(as_feed(validation_data, batch_size=batch_size, steps=validation_steps))
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 0
    hooks = keras.callbacks.CallbackList(
        list(callbacks), add_history=True, add_progbar=bool(verbose), verbose=verbose, epochs=epochs,
        steps=per_epoch, model=model,
    )  # fmt: skip
    model.stop_training = False
    before = updates(model)
    start = initial_epoch * per_epoch
    iterator = program.dispatcher.stream(feed, start)
    pace = program.pace(steps_per_execution)
    hooks.on_train_begin()
    logs: dict[str, float] = {}
    for epoch in range(initial_epoch, epochs):
        hooks.on_epoch_begin(epoch)
        # What counts is what the servers applied: an execution that a dying worker had begun is run again.
        applied = updates(model) - before
        logs = _epoch(program, iterator, (epoch + 1) * per_epoch - start - applied, pace, hooks)
        if validate is not None:
            logs |= {f"val_{name}": value for name, value in validate().items()}
        hooks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    if model.optimizer.use_ema and epochs > initial_epoch:
        model.optimizer.finalize_variable_values(model.trainable_variables)
    hooks.on_train_end(logs)
    return model.history


def _epoch(program: _Program, iterator, steps: int, pace: Pace, hooks) -> dict[str, float]:
    """Runs `steps` updates; returns the logs. Callbacks may stop it between two executions."""
    dispatcher = program.dispatcher
    totals = _Totals(program.steps)
    want_logs = _has_batch_hooks(hooks)
    started = finished = 0
    waiting = 0
    stop = False
    while waiting or (started < steps and not stop):
        while started < steps and not stop and waiting < dispatcher.in_flight:
            n = pace.next(steps - started, dispatcher.in_flight)
            hooks.on_train_batch_begin(started)
            dispatcher.run(program.train, iterator, n)
            started, waiting = started + n, waiting + 1
        done = dispatcher.result()
        waiting -= 1
        pace.observe(done.steps, done.seconds)
        totals.add(done.totals)
        finished += done.steps
        hooks.on_train_batch_end(finished - 1, totals.logs() if want_logs else None)
        stop = stop or program.steps.model.stop_training
    return totals.logs()


def evaluate(
    model: keras.Model, data: Any, *, batch_size: int | None = None, steps: int | None = None
) -> dict[str, float]:
    """Loss and metrics of a compiled model over `data`, every example counted once, on the model's strategy.

    Args:
      model, data, batch_size: as for `fit`.
      steps: batches of a dataset to use; all of them if not given.

    Returns:
      As `keras.Model.evaluate(..., return_dict=True)`.
    """
    feed = as_feed(data, batch_size=batch_size, steps=steps)
    if not feed.steps:
        raise ValueError("the data is endless or empty: say how much to evaluate with steps")
    return _Program.of(model, feed).evaluation(feed)()


def updates(model: keras.Model) -> int:
    """How many updates the model's optimizer has applied in its life."""
    return int(model.optimizer.iterations.numpy())


def _has_batch_hooks(hooks: keras.callbacks.CallbackList) -> bool:
    base = keras.callbacks.Callback
    names = ("on_train_batch_end", "on_batch_end")
    return any(getattr(type(c), name) is not getattr(base, name) for c in hooks.callbacks for name in names)


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
