"""One call of `fit`: what it was given is made into data, steps and callbacks, and the model is trained on it."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tf2dist.compat import model_methods
from tf2dist.errors import START_AGAIN, CheckpointError, Preempted, UsageError, reason
from tf2dist.input.data_adapter import DataAdapter, FiniteDataAdapter
from tf2dist.input.make_adapter import make_data_adapter, takes_batch_size
from tf2dist.parameter_server.options import ParameterServer
from tf2dist.runtime import session
from tf2dist.training import data_validation, default_fit_seed, evaluator_task
from tf2dist.training.call_arguments import check_same_for_peers, limited, one_pass
from tf2dist.training.callbacks import (
    PeersAlike,
    act_on_validation,
    checkpoints_of,
    includes,
    learning_rate_of,
    make_callback_list,
    need_every_batch,
)
from tf2dist.training.checkpoint import Checkpoint
from tf2dist.training.fit_loop import TrainingLoop
from tf2dist.training.prepared_model import PreparedModel, cancel
from tf2dist.training.restore_servers import can_go_on_without_servers, restoring_servers

_log = logging.getLogger("tf2dist")
_CHECKPOINTS = (Checkpoint, keras.callbacks.BackupAndRestore)


@dataclass(frozen=True, kw_only=True)
class FitArguments:
    """The arguments of `tf2dist.fit`, whose names and meanings these have.

    Attributes:
      data: `x`, `y` and `sample_weight`.
      callbacks: a list.
      validation_batch_size: `batch_size`, if it was not given.
    """

    data: Any
    batch_size: int | None
    epochs: int
    verbose: str | int
    callbacks: list[Any]
    validation_data: Any
    shuffle: bool
    class_weight: Mapping[int, float] | None
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: int | Sequence[int]
    seed: int
    steps_per_execution: int | None
    parameter_server: ParameterServer | None


class FitCall:
    """One call of `fit`.

    Args:
      model: compiled.
      arguments: what the user gave.
      prepare: makes a `PreparedModel` of the model and the options of a parameter server strategy.
      evaluate: what callbacks call that call the model's own. Keras's fails where replicas have unlike numbers of rows
        (its metrics on `PerReplica` values; `Trainer.evaluate` in keras/src/backend/tensorflow/trainer.py).

    Raises:
      UsageError: the data cannot be used.
    """

    def __init__(
        self,
        model: keras.Model,
        arguments: FitArguments,
        prepare: Callable[[keras.Model, ParameterServer | None], PreparedModel],
        evaluate: Callable[..., Any],
    ):
        self._model, self._given, self._prepare, self._evaluate = model, arguments, prepare, evaluate
        self._first_adapter = self._make_adapter()
        validates_itself = model_methods.has_own(model, "evaluate") and not session.current().is_evaluator
        has_adapter = arguments.validation_data is not None and not validates_itself
        self._validation = self._validation_adapter if has_adapter else None
        most = keras.config.max_steps_per_epoch()
        self._epoch_steps = data_validation.finite_steps(
            limited(arguments.steps_per_epoch or self._first_adapter.steps, most, "steps_per_epoch"), "steps_per_epoch"
        )
        self._checkpoints = [callback for callback in arguments.callbacks if isinstance(callback, Checkpoint)]
        self._restores_servers = can_go_on_without_servers(model, arguments.data, self._checkpoints)
        self._epoch_logs: dict[int, dict[str, Any]] = {}

    def run(self) -> Any:
        """Trains, or evaluates in an evaluator task; returns and raises what `fit` does."""
        if session.current().is_evaluator:
            return self._follow()
        try:
            with _preemptible() if self._checkpoints else contextlib.nullcontext():
                if self._restores_servers:
                    history = restoring_servers(self._model, self._checkpoints, self._train)
                else:
                    history = self._train(None)
        except BaseException as error:
            for checkpoint in self._checkpoints:  # first, since who cannot wait for the rest interrupts it again
                checkpoint.preempted() if isinstance(error, Preempted) else checkpoint.failed()
            with contextlib.suppress(Exception):  # this error says more; the next call cancels what is left
                cancel(self._model)
            raise
        if self._checkpoints:
            session.current().preemption.end_if_requested()  # it was asked to stop after the last step
        default_fit_seed.end_call(self._model)
        return history

    def _make_adapter(self) -> DataAdapter:
        given = self._given
        return make_data_adapter(
            given.data, batch_size=given.batch_size, shuffle=given.shuffle, seed=given.seed,
            class_weight=given.class_weight, steps=given.steps_per_epoch if takes_batch_size(given.data) else None,
            progress=session.current().progress,
        )  # fmt: skip

    @functools.cached_property
    def _validation_adapter(self) -> FiniteDataAdapter:
        # Keras unpacks a list here, and nowhere else.
        data = self._given.validation_data
        data = tuple(data) if isinstance(data, list) else data
        size = self._given.validation_batch_size if takes_batch_size(data) else None
        return one_pass(data, size, self._given.validation_steps, "validation_steps")

    def _ready(self, adapter: DataAdapter, options: ParameterServer | None) -> PreparedModel:
        """The model, ready to be trained and validated on these data; all peers of the job train alike."""
        given, validation = self._given, self._validation
        prepared = self._prepare(self._model, options)
        check_same_for_peers(
            prepared, "fit", steps_per_epoch=self._epoch_steps, epochs=given.epochs, initial_epoch=given.initial_epoch,
            seed=given.seed, steps_per_execution=given.steps_per_execution,
            validation_steps=None if validation is None else validation.steps,
            callbacks=checkpoints_of(given.callbacks, _CHECKPOINTS), optimizer=type(self._model.optimizer).__name__,
            learning_rate=learning_rate_of(self._model),
        )  # fmt: skip
        prepared.train_step(adapter)
        if validation is not None:
            prepared.train_step(validation, "test_step")  # what it cannot do is to be known before an epoch is over
        return prepared

    def _follow(self) -> Any:
        """Evaluates each checkpoint that the job writes, in an evaluator task."""
        # The same script runs in the other tasks, with options for servers, which an evaluator does not have.
        prepared = self._ready(self._first_adapter, None)
        if self._validation is None:
            raise UsageError("an evaluator evaluates validation_data: give fit some")
        directory = evaluator_task.checkpoint_of(self._given.callbacks).directory
        callback_list = make_callback_list(self._model, (), steps=self._validation.steps)
        return evaluator_task.follow(prepared, directory, self._validation, callback_list)

    def _train(self, reached: int | None) -> Any:
        """Trains; or goes on from a checkpoint, since servers were lost when that global step was reached."""
        given = self._given
        adapter = self._first_adapter if reached is None else self._make_adapter()
        prepared = self._ready(adapter, given.parameter_server or ParameterServer())
        announced = self._epoch_steps if given.steps_per_epoch or adapter.announced_steps else None
        callback_list = make_callback_list(
            self._model, PeersAlike.after(given.callbacks, prepared.strategy), verbose=given.verbose,
            epochs=given.epochs, steps=announced, add_history=True, last=Checkpoint,
        )  # fmt: skip
        one_by_one = given.steps_per_execution is None and need_every_batch(prepared.strategy, callback_list)
        loop = TrainingLoop(
            prepared, adapter, callback_list, self._epoch_steps,
            prepared.tuner(1 if one_by_one else given.steps_per_execution),
            restores_epoch=includes(given.callbacks, keras.callbacks.BackupAndRestore), reached=reached,
            saves_first=self._restores_servers, epoch_logs=self._epoch_logs,
        )  # fmt: skip
        validate = None if given.validation_data is None else self._validator(prepared, adapter, callback_list)
        self._model.stop_training = False
        has_replicas = prepared.strategy.num_replicas_in_sync > 1
        with model_methods.lending(self._model, {"evaluate": self._evaluate} if has_replicas else {}):
            return loop.run(given.initial_epoch, given.epochs, validate, given.validation_freq)

    def _validator(self, prepared: PreparedModel, adapter: DataAdapter, callback_list: Any) -> Callable[[], Any]:
        """What evaluates the validation data at the end of an epoch, and returns the logs."""
        validation = self._validation
        one_by_one = need_every_batch(prepared.strategy, callback_list, "evaluation")
        if validation is None:
            return lambda: self._validate_by_own(prepared, callback_list, one_by_one=one_by_one)
        may_stop = bool(self._checkpoints) and prepared.train_step(adapter).sums_make_logs
        may_stop = may_stop and not act_on_validation(prepared.strategy, callback_list)
        return lambda: prepared.validate(validation, callback_list, one_by_one=one_by_one, may_stop=may_stop)

    def _validate_by_own(self, prepared: PreparedModel, callback_list: Any, *, one_by_one: bool) -> Any:
        """Evaluates by the model's own `evaluate`, which gets the validation data as the user gave them."""
        given = self._given
        x, y, weights = keras.utils.unpack_x_y_sample_weight(given.validation_data)
        return model_methods.validate_by_own(
            self._model,
            lambda: prepared.evaluate(self._validation_adapter, callback_list, one_by_one=one_by_one),
            x=x, y=y, sample_weight=weights, batch_size=given.validation_batch_size, verbose=0,
            steps=given.validation_steps, callbacks=callback_list, return_dict=True,
        )  # fmt: skip


@contextlib.contextmanager
def _preemptible() -> Generator[None]:
    """Returns a context for a training that saves when the job is asked to stop."""
    preemption = session.current().preemption
    with preemption.training():
        try:
            yield
        except (UsageError, CheckpointError):
            raise
        except Exception as error:
            if not preemption.ends_job:
                raise
            _log.warning(
                "tf2dist: the job was asked to stop, and %s came before it had saved; it ends with status %d, and goes "
                "on from the last checkpoint when it is started again", reason(error), START_AGAIN,
            )  # fmt: skip
            # Its data may be made by processes that were asked to stop as well, and a server's host may be gone.
            preemption.end(alone=True)
