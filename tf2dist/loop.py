"""`fit` and `evaluate`: the outer loop, with the names and the meaning of `keras.Model.fit`, on any strategy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import keras

from tf2dist.feed import as_feed
from tf2dist.pace import Pace
from tf2dist.program import Program, Totals


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
    program = Program.of(model, feed)
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
        logs = _epoch(program, iterator, before + (epoch + 1) * per_epoch - start, pace, hooks)
        if validate is not None:
            logs |= {f"val_{name}": value for name, value in validate().items()}
        hooks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    if model.optimizer.use_ema and epochs > initial_epoch:
        model.optimizer.finalize_variable_values(model.trainable_variables)
    hooks.on_train_end(logs)
    return model.history


def _epoch(program: Program, iterator, until: int, pace: Pace, hooks) -> dict[str, float]:
    """Runs updates until the model has had `until` of them; returns the logs. Callbacks may stop it in between."""
    totals = Totals(program.steps)
    model = program.steps.model
    finished, left = 0, until - updates(model)
    # What counts is what was applied: of an execution that a dying worker had begun, some steps may be run again,
    # and the next epoch has so many fewer.
    while left > 0 and not model.stop_training:
        finished = _updates(program, iterator, left, finished, totals, pace, hooks)
        left, before = until - updates(model), left
        if left == before:  # nothing to train: every layer is frozen
            break
    return totals.logs()


def _updates(program: Program, iterator, steps: int, finished: int, totals: Totals, pace: Pace, hooks) -> int:
    """Runs `steps` updates after the `finished` ones of the epoch; returns how many that makes."""
    dispatcher, model = program.dispatcher, program.steps.model
    want_logs = _has_batch_hooks(hooks)
    started, end = finished, finished + steps
    waiting = 0  # executions under way
    while waiting or (started < end and not model.stop_training):
        while started < end and not model.stop_training and waiting < dispatcher.in_flight:
            n = pace.next(end - started, dispatcher.in_flight)
            hooks.on_train_batch_begin(started)
            dispatcher.run(program.train, iterator, n)
            started, waiting = started + n, waiting + 1
        done = dispatcher.result()
        finished, waiting = finished + done.steps, waiting - 1
        pace.observe(done.steps, done.seconds)
        if done.totals is not None:
            totals.add(done.totals)
        hooks.on_train_batch_end(finished - 1, totals.logs() if want_logs else None)
    return finished


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
    return Program.of(model, feed).evaluation(feed)()


def updates(model: keras.Model) -> int:
    """How many updates the model's optimizer has applied in its life."""
    return int(model.optimizer.iterations.numpy())


def _has_batch_hooks(hooks: keras.callbacks.CallbackList) -> bool:
    base = keras.callbacks.Callback
    names = ("on_train_batch_end", "on_batch_end")
    return any(getattr(type(c), name) is not getattr(base, name) for c in hooks.callbacks for name in names)
