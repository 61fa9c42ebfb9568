"""The public `fit`, `evaluate` and `predict`, with the names and meanings of `keras.Model`'s, on any strategy."""

# Keras ships no types.
# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import keras
import tensorflow as tf

from tf2dist.compat import model_methods, versions
from tf2dist.compat.model import layers_of, logs_in_order
from tf2dist.compat.strategy_scope import outside_of_scopes
from tf2dist.errors import UsageError
from tf2dist.input.keras_arguments import as_data
from tf2dist.input.validation_split import split_rows
from tf2dist.parameter_server.options import ParameterServer
from tf2dist.runtime import session
from tf2dist.training import default_fit_seed, model_validation
from tf2dist.training.call_arguments import check_same_for_peers, limited, one_pass
from tf2dist.training.callbacks import as_list, make_callback_list, need_every_batch
from tf2dist.training.fit_call import FitArguments, FitCall
from tf2dist.training.prepared_model import PreparedModel, prepare

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Model = TypeVar("_Model", bound=keras.Model)


def _call_with_peers(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Counts the calls of a function that makes steps, and that all peers of a job call together (`Session.call`).

    They may be made inside of a strategy's scope.
    """

    @functools.wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with session.current().call(), outside_of_scopes():
            return function(*args, **kwargs)

    return call


@_call_with_peers
def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    *,
    seed: int | None = None,
    steps_per_execution: int | None = None,
    parameter_server: ParameterServer | None = None,
) -> keras.callbacks.History:
    """Trains a compiled model on its strategy: in whose scope it was made, or else that of the job.

    The arguments of `keras.Model.fit`, in its order, come first; the last three are ours.

    Every update uses one global batch, cut over the replicas; under an asynchronous parameter server strategy every
    worker makes updates of its own, each from a whole global batch, and an epoch is `steps_per_epoch` updates
    whoever makes them.

    Args:
      model: compiled. One that was made outside of `strategy.scope()` is moved into it, with its state.
      x, y, sample_weight: arrays, with `batch_size`; several inputs or outputs are a list or dictionary of arrays.
        Or, as `x` alone: a tuple `(x, y)` or `(x, y, sample_weight)` of those, `tf2dist.Examples`, a
        `tf.data.Dataset` of global batches (in a multi-worker job every peer must read it in the same order), a
        `keras.utils.PyDataset`, a generator, a torch `DataLoader` or another iterable of such batches, or a function of
        a `tf.distribute.InputContext` that returns a Dataset of one replica's batches. Datasets are not autotuned
        unless their options set `autotune.enabled = True` (see `tf2dist.input.without_autotune`).
      batch_size, shuffle, seed: for arrays: the examples in a global batch (if not given, as many as make
        `steps_per_epoch` batches of a pass, else 32; ignored with a warning for what is batched already), a new order
        for each pass, and what the orders follow from: two calls with the same seed read the same orders. If none is
        given, each training of the model reads others, the same ones whenever the program runs. The last two are for
        the batches of a `PyDataset`, too.
      epochs: the number of the epoch after the last one, as in Keras.
      verbose: 0, 1, 2 or "auto": Keras's progress bar, "auto" on a terminal only.
      callbacks: one or many of Keras, and `tf2dist.Checkpoint`, which goes on where an earlier call was killed. Hooks
        of yours for a batch are called for each batch, at one step an execution; those of a
        `tf2dist.ExecutionCallback`, or with `steps_per_execution`, once an execution, with the number of its
        first step at the beginning and of its last at the end. In a multi-worker job pass the same in every peer; those
        that write files do so in the first peer only. In an evaluator task `fit` does not train: it
        evaluates `validation_data` with each checkpoint that the job writes, until that has ended.
      validation_split: fraction of the arrays' rows, the last ones, that is not trained on but is `validation_data`,
        unless that is given.
      validation_data, validation_steps, validation_batch_size, validation_freq: evaluated after each epoch, or
        every so many, or those in the list, into the logs as "val_...".
      class_weight: weight of each class's examples in the loss.
      initial_epoch: the epoch to go on from; the data goes on from there too, so that two calls see what one would.
        (Keras begins with the data anew, which is another place where an epoch is not a whole number of passes.)
      steps_per_epoch: updates in an epoch; one pass over the data if not given. An endless dataset and a function
        need it; a generator without it is read to its end first, and its batches are kept.
      steps_per_execution: steps in one call of a `tf.function`; chosen from the time they take if not given.
      parameter_server: for a parameter server strategy: how workers make their updates.

    Returns:
      The history of each epoch's logs. `model.optimizer.iterations` equals the updates that were applied.

    Raises:
      ValueError: when the model is not compiled or cannot be trained on its strategy, the data cannot be used or
        does not fit the model, the peers of a job were given different numbers of steps, or the loss has become NaN.
      Preempted: the job was asked to stop (`tf2dist.preempt`), and a `tf2dist.Checkpoint` has saved it, or its data or
        another task ended before. It is a `SystemExit`, which ends the program with status 75.
      Exception: what the user's data has raised.
    """
    versions.warn_if_untried()
    model_validation.check_compiled(model)
    epochs = limited(epochs, keras.config.max_epochs(), "epochs") or 0
    data = as_data(x, y, sample_weight)
    if validation_split and validation_data is None:
        data, validation_data = split_rows(data, validation_split)
    arguments = FitArguments(
        data=data, batch_size=batch_size, epochs=epochs, verbose=verbose, callbacks=as_list(callbacks),
        validation_data=validation_data, shuffle=shuffle, class_weight=class_weight, initial_epoch=initial_epoch,
        steps_per_epoch=steps_per_epoch, validation_steps=validation_steps, validation_freq=validation_freq,
        validation_batch_size=validation_batch_size or batch_size, steps_per_execution=steps_per_execution,
        seed=default_fit_seed.begin_call(model, initial_epoch) if seed is None else seed,
        parameter_server=parameter_server,
    )  # fmt: skip
    return FitCall(model, arguments, _prepare, evaluate).run()


@_call_with_peers
def evaluate(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
) -> Any:
    """Loss and metrics of a compiled model over the data, every example counted once, on the model's strategy.

    The arguments are those of `keras.Model.evaluate`, in its order.

    Args:
      model, x, y, sample_weight, batch_size, verbose, callbacks: as for `fit`. A function is called once, as for a job
        of one process.
      steps: batches to use; all of them if not given. Arrays without a `batch_size` are cut into as many.
      return_dict: whether values come with their names.

    Returns:
      A list of numbers, the loss first; one number where there is no metric; a dictionary with `return_dict`.

    Raises:
      ValueError: as `fit`.
    """
    model_validation.check_compiled(model)
    adapter = one_pass(as_data(x, y, sample_weight), batch_size, steps, "steps")
    callback_list = _callback_list(model, callbacks, verbose, adapter.announced_steps)
    prepared = _prepare(model)
    check_same_for_peers(prepared, "evaluate", steps=adapter.steps)
    one_by_one = need_every_batch(prepared.strategy, callback_list, "evaluation")
    logs = prepared.evaluate(adapter, callback_list, one_by_one=one_by_one)
    return logs if return_dict else logs_in_order(model, logs)


@_call_with_peers
def predict(
    model: keras.Model,
    x: Any,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """The model's outputs for every example of the data, once and in its order, on the model's strategy.

    The arguments are those of `keras.Model.predict`, in its order.

    Args:
      model: compiled or not.
      x: as for `fit`; an array by itself is the input, and a list is several; of a tuple the first entry is.
      batch_size, verbose, steps, callbacks: as for `evaluate`.

    Returns:
      f[n, ...], or a structure of such where the model has several outputs, in every process that calls it.

    Raises:
      ValueError: the data cannot be used or does not fit the model.
    """
    adapter = one_pass(as_data(x), batch_size, steps, "steps", in_order=True)
    callback_list = _callback_list(model, callbacks, verbose, adapter.announced_steps)
    prepared = _prepare(model)
    check_same_for_peers(prepared, "predict", steps=adapter.steps)
    return prepared.predict(adapter, callback_list)


def _callback_list(model: keras.Model, callbacks: Any, verbose: str | int, steps: int | None) -> Any:
    """Callbacks of `evaluate` and `predict`; a list of Keras's is used as it is, that of a `fit` around them."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return make_callback_list(model, as_list(callbacks), verbose=verbose, steps=steps)


def bind(model: _Model) -> _Model:
    """Gives a model `fit`, `evaluate` and `predict` of this library as its methods, and returns it.

    For code that calls the methods itself: a tuner, a callback with `self.model.predict`. A class's own method runs as
    before, and what it calls by `super()` is ours. Other models keep Keras's methods.
    """
    model_methods.replace(model, _METHODS)
    return model


_METHODS = {"fit": fit, "evaluate": evaluate, "predict": predict}


def _prepare(model: keras.Model, options: ParameterServer | None = None) -> PreparedModel:
    """As `prepare`; under parameter servers, where Keras's methods cannot run, the model and those in it have ours."""
    prepared = prepare(model, options)
    if isinstance(prepared.strategy, tf.distribute.ParameterServerStrategy):
        for each in (model, *layers_of(model)):
            if isinstance(each, keras.Model):
                model_methods.lend(each, _METHODS)
    return prepared


def updates(model: keras.Model) -> int:
    """How many updates the model's optimizer has applied in its life.

    Raises:
      ValueError: the model is not compiled, or was compiled without an optimizer.
    """
    model_validation.check_compiled(model)
    if model.optimizer is None:
        raise UsageError("the model was compiled without an optimizer, which would count its updates")
    return int(model.optimizer.iterations.numpy())
