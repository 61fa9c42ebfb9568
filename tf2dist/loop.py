"""`fit`, `evaluate` and `predict`: with the names and the meaning of `keras.Model`'s, on any strategy."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tf2dist import checks, evaluator, joining
from tf2dist.checkpoint import Checkpoint
from tf2dist.epoch import Training
from tf2dist.feed import as_feed
from tf2dist.hooks import hooks_for
from tf2dist.parameter_server import ParameterServer
from tf2dist.program import Program


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
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    class_weight: Mapping[int, float] | None = None,
    initial_epoch: int = 0,
    steps_per_execution: int | None = None,
    parameter_server: ParameterServer | None = None,
    verbose: str | int = "auto",
) -> keras.callbacks.History:
    """Trains a compiled model on the strategy in whose scope it was made.

    Every update uses one global batch, cut over the replicas; under an asynchronous parameter server strategy every
    worker makes updates of its own, each from a whole global batch, and an epoch is `steps_per_epoch` updates
    whoever makes them.

    Args:
      model: compiled, made inside of `strategy.scope()`.
      data: a tuple of arrays `(x, y)` or `(x, y, sample_weight)` with `batch_size`, `tf2dist.Examples`, a
        `tf.data.Dataset` of global batches (in a multi-worker job every peer must read it in the same order), or a
        function of a `tf.distribute.InputContext` that returns a Dataset of one replica's batches. Datasets are not
        tuned while they are read unless their options say `autotune.enabled = True` (`tf2dist.untuned` says why).
      epochs: the number of the epoch after the last one, as in Keras.
      steps_per_epoch: updates in an epoch; one pass over the data if not given. An endless dataset and a function
        need it.
      batch_size, shuffle, seed: for arrays: the examples in a global batch (32), a new order for each pass, and
        what the orders follow from.
      validation_data, validation_steps, validation_batch_size, validation_freq: evaluated after each epoch, or
        every so many, or those in the list, into the logs as "val_...".
      callbacks: of Keras, and `tf2dist.Checkpoint`, which goes on where an earlier call was killed. Hooks for a
        batch fire once an execution, with the number of its last step. In a multi-worker job pass the same in every
        peer; those that write files do so in the first peer only. In an evaluator task `fit` does not train: it
        evaluates `validation_data` with each checkpoint that the job writes, until that has ended.
      class_weight: weight of each class's examples in the loss.
      initial_epoch: the epoch to go on from; the data goes on from there too.
      steps_per_execution: steps in one call of a `tf.function`; chosen from the time they take if not given.
      parameter_server: for a parameter server strategy: how workers make their updates.
      verbose: 0, 1, 2 or "auto": Keras's progress bar, "auto" on a terminal only.

    Returns:
      The history of each epoch's logs. `model.optimizer.iterations` equals the updates that were applied.

    Raises:
      ValueError: when the model is not compiled or cannot be trained on its strategy, the data cannot be used or
        does not fit the model, or the loss has become NaN.
    """
    checks.compiled(model)
    feed = as_feed(data, batch_size=batch_size, shuffle=shuffle, seed=seed, class_weight=class_weight)
    validation = None
    if validation_data is not None:
        size = validation_batch_size or batch_size
        size = size if checks.takes_batch_size(validation_data) else None
        validation = as_feed(validation_data, batch_size=size, steps=validation_steps, once=True)
        checks.has_end(validation, "validation_steps")
    per_epoch = steps_per_epoch or feed.steps
    if not per_epoch:
        raise ValueError("the data is endless or empty: say how long an epoch is with steps_per_epoch")
    program = Program.of(model, parameter_server or ParameterServer())
    program.steps(feed)
    if joining.evaluates():
        if validation is None:
            raise ValueError("an evaluator evaluates validation_data: give fit some")
        directory = evaluator.checkpoint_of(callbacks).directory
        return evaluator.follow(program, directory, validation, hooks_for(model, (), steps=validation.steps))
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 0
    hooks = hooks_for(model, callbacks, verbose=int(verbose), epochs=epochs, steps=per_epoch)
    training = Training(program, feed, hooks, per_epoch, program.pace(steps_per_execution))
    model.stop_training = False
    try:
        return training.run(initial_epoch, epochs, validation, validation_freq)
    except BaseException:
        program.dispatcher.stop()
        for callback in hooks.callbacks:
            if isinstance(callback, Checkpoint):
                callback.failed()
        raise


def evaluate(
    model: keras.Model,
    data: Any,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> dict[str, float]:
    """Loss and metrics of a compiled model over `data`, every example counted once, on the model's strategy.

    Args:
      model, data, batch_size, callbacks: as for `fit`. A function is called once, as for a job of one process.
      steps: batches of a dataset to use; all of them if not given.

    Returns:
      As `keras.Model.evaluate(..., return_dict=True)`.

    Raises:
      ValueError: as `fit`.
    """
    checks.compiled(model)
    feed = as_feed(data, batch_size=batch_size, steps=steps, once=True)
    checks.has_end(feed, "steps")
    return Program.of(model).evaluate(feed, hooks_for(model, callbacks, steps=feed.steps))


def predict(
    model: keras.Model,
    data: Any,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> Any:
    """The model's outputs for every example of `data`, once and in its order, on the model's strategy.

    Args:
      model: compiled or not.
      data: as for `fit`; an array by itself is the input, of a tuple the first entry is.
      batch_size, steps, callbacks: as for `evaluate`.

    Returns:
      f[n, ...], or a structure of such where the model has several outputs, in every process that calls it.

    Raises:
      ValueError: the data cannot be used or does not fit the model.
    """
    feed = as_feed(data, batch_size=batch_size, steps=steps, once=True)
    checks.has_end(feed, "steps")
    return Program.of(model).predict(feed, hooks_for(model, callbacks, steps=feed.steps))


def updates(model: keras.Model) -> int:
    """How many updates the model's optimizer has applied in its life."""
    return int(model.optimizer.iterations.numpy())
