"""The loop of `fit`: epochs of executions, with callbacks, validation and checkpoints in between."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import keras

from tf2dist.compat.model import forget_initial_epoch, initial_epoch, restored_variables
from tf2dist.compat.model_methods import has_own
from tf2dist.compat.optimizers import learning_rate_variables
from tf2dist.errors import START_AGAIN, CheckpointError
from tf2dist.execution.dispatcher_interface import ExecutionResult
from tf2dist.execution.steps_per_execution import StepsPerExecutionTuner
from tf2dist.input.data_adapter import DataAdapter
from tf2dist.runtime import collectives, session
from tf2dist.training import data_validation
from tf2dist.training.callbacks import (
    act_on_validation,
    has_batch_hooks,
    histories,
    history_of,
    may_change_weights_at_the_end,
    needs_batch_logs,
)
from tf2dist.training.checkpoint import Checkpoint
from tf2dist.training.checkpoint_state import PlaceInEpoch, TrainingState
from tf2dist.training.emergency_plan import EmergencyPlan, announced
from tf2dist.training.metric_sums import MetricSums
from tf2dist.training.nan_loss import fails_on_nan, nan_error
from tf2dist.training.prepared_model import PreparedModel

_log = logging.getLogger("tf2dist")


@dataclass(frozen=True)
class _Start:
    """Where a call of `fit` begins.

    Attributes:
      step: the global step.
      epoch: the number of the first epoch.
      sums: metric sums of that epoch, if an earlier job has left it unfinished.
      is_over: has a callback stopped the training, in an earlier job that was preempted when it was over?
      epoch_has_begun: has an earlier job begun the first epoch?
      was_restored: is it from a checkpoint?
    """

    step: int
    epoch: int
    sums: MetricSums | None = None
    is_over: bool = False
    epoch_has_begun: bool = False
    was_restored: bool = False


class TrainingLoop:
    """One call of `fit`. The *global step* is the number of updates since epoch 0, on all workers together.

    Args:
      prepared: the model.
      data: what it is trained on.
      callbacks: Keras's, those of this process.
      steps_per_epoch: updates in an epoch.
      tuner: chooses how many steps an execution takes.
      restores_epoch: has the first peer a callback that restores weights and epoch (`BackupAndRestore`)?
      reached: the global step that was reached when servers were lost, and with them the values of the model's
        variables, until a checkpoint is restored; None if they have values.
      saves_first: is there to be a checkpoint when training begins?
      epoch_logs: the logs of the epochs that have ended, in this call of `fit`, by their numbers: kept up to date.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        data: DataAdapter,
        callbacks: keras.callbacks.CallbackList,
        steps_per_epoch: int,
        tuner: StepsPerExecutionTuner,
        *,
        restores_epoch: bool = False,
        reached: int | None = None,
        saves_first: bool = False,
        epoch_logs: dict[int, dict[str, Any]] | None = None,
    ):
        self._prepared, self._data, self._callbacks = prepared, data, callbacks
        self._steps_per_epoch, self._tuner, self._restores_epoch = steps_per_epoch, tuner, restores_epoch
        self._saves_first = saves_first
        self._reached, self._epoch_logs = reached, {} if epoch_logs is None else epoch_logs
        self._model, self._dispatcher = prepared.model, prepared.dispatcher
        self._fails_on_nan = fails_on_nan(callbacks.callbacks)
        self._needs_batch_logs = needs_batch_logs(prepared.strategy, callbacks)
        # An execution that waits at a worker would not see what a hook for a batch has changed or stopped.
        self._one_each = has_batch_hooks(callbacks)
        self._checkpoints = [c for c in callbacks.callbacks if isinstance(c, Checkpoint)]
        self._step = prepared.train_step(data)
        self._state = TrainingState(
            self._model,
            prepared.strategy,
            steps_per_epoch,
            self._step.zero_sums(),
            lambda: self._dispatcher.global_step,
            may_change_weights_at_the_end([c for c in callbacks.callbacks if c not in self._checkpoints]),
        )
        self._sums = MetricSums(self._step)  # of the epoch
        self._emergency = EmergencyPlan()
        self._validation_acts = False  # on the model, so that its end must come, too
        self._dropped_gradients: int | None = None  # in the epoch; None where none can be
        self._logged_steps = 0  # whose metric sums have come, in the part of the epoch that this call makes

    def run(
        self,
        first_epoch: int,
        epochs: int,
        validate: Callable[[], Mapping[str, Any] | None] | None,
        validation_freq: int | Sequence[int],
    ) -> keras.callbacks.History:
        """Trains until epoch `epochs`; returns the history.

        Args:
          first_epoch: number of the first epoch, from 0 on.
          epochs: number of the epoch after the last one.
          validate: returns loss and metrics of the validation data, by name; None if it has ended early, since the job
            was asked to stop.
          validation_freq: validate after so many epochs, or after these, counted from 1.

        Raises:
          Preempted: the job was asked to stop, and a `Checkpoint` has saved it.
        """
        model, callbacks = self._model, self._callbacks
        start = self._begin(first_epoch, epochs)
        self._state.set_start(start.step)
        for epoch in [epoch for epoch in self._epoch_logs if epoch >= start.epoch]:
            del self._epoch_logs[epoch]  # it is made again
        session.current().begin_training(
            first_epoch * self._steps_per_epoch,
            epochs * self._steps_per_epoch,
            again=self._reached is not None and self._reached >= 0,
        )
        self._report_step(start.step)
        self._data.end_epoch()
        session.current().progress.compiles(reads_again=start.step > 0)
        stream = self._prepared.open_stream(self._data, start.step, epochs * self._steps_per_epoch)
        if self._saves_first and not start.was_restored:
            self._checkpoints[0].save(again=True)
        self._prepared.in_fit = True
        try:
            counts, has_logs = self._dispatcher.counts_on_servers(self._step), self._step.sums_make_logs
            if counts is not None:
                acts = act_on_validation(self._prepared.strategy, self._callbacks)
                self._validation_acts = acts or has_own(self._model, "evaluate")
            with announced(self._checkpoints, self._state, counts, sums_make_logs=has_logs) as self._emergency:
                logs = {} if start.is_over else self._run_epochs(stream, start, epochs, validate, validation_freq)
        finally:
            self._prepared.in_fit = False
            self._data.close()  # before what reads it is freed, which waits until nobody is at it
        self._dispatcher.cancel()
        if self._checkpoints and not model.stop_training and self._state.has_trained:
            for checkpoint in self._checkpoints:  # callbacks may take long now; one that has stopped it would not again
                checkpoint.save_at_end()
        # Also if a job before this one has died between its last update and this.
        if epochs and model.optimizer is not None:
            model.optimizer.finalize_variable_values(model.trainable_variables)
        callbacks.on_train_end(logs)
        if self._checkpoints:
            self._note_that_all_is_saved()
        history = history_of(callbacks)
        if self._reached is not None:  # it knows nothing of the epochs before
            history.epoch = sorted(self._epoch_logs)
            history.history = histories(self._epoch_logs)
        return history

    def _run_epochs(
        self,
        stream,
        start: _Start,
        epochs: int,
        validate: Callable[[], Mapping[str, Any] | None] | None,
        validation_freq: int | Sequence[int],
    ) -> dict:
        """Trains and validates from there on; returns the last epoch's logs."""
        model, callbacks, sums = self._model, self._callbacks, start.sums
        logs: dict = {}
        for epoch in range(start.epoch, epochs):
            rates = learning_rate_variables(model.optimizer) if start.epoch_has_begun and epoch == start.epoch else []
            restored = [rate.numpy() for rate in rates]
            callbacks.on_epoch_begin(epoch)
            for rate, value in zip(rates, restored, strict=True):
                rate.assign(value)  # what the hook has made of it, it has made before: half of the rate, say
            logs = self._run_epoch(epoch, stream, sums or MetricSums(self._step))
            sums = None
            if validate is not None and _is_validation_epoch(epoch, validation_freq):
                if self._validation_acts:
                    self._emergency.end_epoch()
                validated = validate()
                if validated is None and self._dispatcher.asked_to_stop:
                    self._save_and_end(self._place((epoch + 1) * self._steps_per_epoch))
                logs |= {f"val_{name}": value for name, value in (validated or {}).items()}
            kept = history_of(callbacks).history
            counts = {name: len(values) for name, values in kept.items()}
            self._emergency.end_epoch()
            callbacks.on_epoch_end(epoch, logs)
            # With what callbacks have added, as the learning rate.
            self._epoch_logs[epoch] = {n: values[-1] for n, values in kept.items() if len(values) > counts.get(n, 0)}
            if model.stop_training:
                break
        return logs

    def _begin(self, first_epoch: int, epochs: int) -> _Start:
        """Restores what an earlier job has left, and says where to begin."""
        model, strategy = self._model, self._prepared.strategy
        forget_initial_epoch(model)
        self._callbacks.on_train_begin()
        first = initial_epoch(model) or first_epoch
        if self._restores_epoch:  # the first peer has read it from its disk
            (first,) = collectives.broadcast(strategy, [first])
            collectives.broadcast_variables(strategy, restored_variables(model))
        start = _Start(int(first) * self._steps_per_epoch, int(first))
        for checkpoint in self._checkpoints:
            found = checkpoint.begin(self._state, start.step, epochs)
            if found is None:
                continue
            sums = MetricSums(self._step)
            steps, ends = found.global_step % self._steps_per_epoch, found.place.ends
            are_logs = self._step.sums_make_logs or not ends  # of a step that others keep no sums of
            if (steps or ends) and not (are_logs and sums.take_up(found.metric_sums)):
                what = f"the logs of this epoch are of its batches from step {found.global_step} on"
                if not steps:  # without logs it cannot be ended
                    ends = False
                    what = f"callbacks are not told that epoch {found.global_step // self._steps_per_epoch} has ended"
                _log.warning("tf2dist: the model's metrics are others than the checkpoint's, so that %s", what)
            # What had stopped an epoch that is not ended any more has stopped the training.
            is_over = found.is_over or (found.place.stops and found.place.ends and not ends)
            if found.place.stops or is_over:
                model.stop_training = True
            epoch = (found.global_step - ends) // self._steps_per_epoch
            has_begun = bool(steps) or ends or found.place.begins
            start = _Start(found.global_step, epoch, sums, is_over, has_begun, was_restored=True)
        if self._reached is not None and not start.was_restored:
            raise CheckpointError(
                "parameter servers were lost, and no whole checkpoint of this training is left to go on from"
            )
        if self._reached is not None:
            _log.warning(
                "tf2dist: training goes on from update %d of the last checkpoint; %d updates after it were lost, and "
                "are made again", start.step, max(0, self._reached - start.step),
            )  # fmt: skip
        return start

    def _report_step(self, step: int) -> None:
        self._state.reached = step
        session.current().report_step(step)

    @property
    def _max_in_flight(self) -> int:
        return self._dispatcher.workers if self._one_each else self._dispatcher.max_in_flight

    def _run_epoch(self, epoch: int, stream, sums: MetricSums) -> dict:
        """Makes the updates that the epoch still needs; returns its logs. Callbacks may stop it earlier."""
        self._sums, self._dropped_gradients, self._logged_steps = sums, None, 0
        self._state.set_epoch_sums(sums.values)
        end = (epoch + 1) * self._steps_per_epoch
        begin = step = self._dispatcher.global_step
        self._emergency.begin_epoch(epoch, step, sums.values, stops=bool(self._model.stop_training))
        finished = step - epoch * self._steps_per_epoch
        self._data.begin_epoch()
        # Applied updates count: some steps of an execution that was on a dying worker are missing, and made again.
        while step < end and not self._ends_early(finished):
            self._data.allow(end - step - self._dispatcher.unused_batches)
            told = self._run_until(end, stream, step, finished)
            step = self._dispatcher.global_step
            finished = step - epoch * self._steps_per_epoch
            if finished > told:  # steps of an execution whose result is lost
                session.current().progress.made()
                self._callbacks.on_train_batch_end(finished - 1, sums.logs() if self._needs_batch_logs else None)
                self._emergency.reach(self._state.reached, sums.values, stops=bool(self._model.stop_training))
            self._report_step(step)
        self._data.end_epoch()
        if self._logged_steps < step - begin:
            _log.warning(
                "epoch %d made %d updates, and its logs have the loss and metrics of %d: those of the others are lost "
                "with workers that were killed or stopped", epoch + 1, step - begin, self._logged_steps,
            )  # fmt: skip
        logs = sums.logs()
        sums.set_metrics(self._prepared.strategy)
        if self._dropped_gradients is None:
            return logs
        return logs | {"dropped_gradients": self._dropped_gradients}

    def _run_until(self, end: int, stream, step: int, finished: int) -> int:
        """Runs executions from global step `step` to `end`, or until one is lost.

        Args:
          finished: steps of the epoch so far.

        Returns:
          `finished` after it, without the steps of executions whose results are lost.
        """
        dispatcher, callbacks, model = self._dispatcher, self._callbacks, self._model
        in_flight, lost, progress = 0, False, session.current().progress
        while True:
            stops = bool(self._checkpoints) and dispatcher.asked_to_stop
            due = [c for c in self._checkpoints if c.is_due()]
            # Nothing changes while it is saved; and the count of updates says of which batches they were made.
            if not (in_flight or dispatcher.has_gaps):
                place = self._place(end)
                if dispatcher.global_step == end and not place.ends:
                    stops = False  # the job ends when this epoch has
                if stops:
                    self._save_and_end(place)
                for checkpoint in due:
                    checkpoint.save(place)
                due = []
            while step < end and not lost and in_flight < (most := self._max_in_flight):
                if (due or stops) and not dispatcher.has_gaps:
                    break
                if self._ends_early(finished or in_flight):
                    break
                n = 1 if model.stop_training else self._tuner.next(end - step, most)
                callbacks.on_train_batch_begin(step - (end - self._steps_per_epoch))
                with data_validation.data_may_fail(self._data), progress.steps():
                    step += dispatcher.schedule(self._prepared.train_function, stream, n, self._tuner.limit)
                in_flight += 1
            if not in_flight:
                return finished
            with data_validation.data_may_fail(self._data), progress.steps():
                result = dispatcher.next_result()
            in_flight, step = in_flight - 1, step - result.given_back
            if result.sums is None:  # some of its steps may be applied
                lost = True
                continue
            finished += result.steps
            if not result.steps:
                continue
            progress.made()
            self._report_step(end - self._steps_per_epoch + finished)
            self._account(result)
            callbacks.on_train_batch_end(finished - 1, self._sums.logs() if self._needs_batch_logs else None)
            self._emergency.reach(self._state.reached, self._sums.values, stops=bool(model.stop_training))

    def _save_and_end(self, place: PlaceInEpoch) -> NoReturn:
        """Ends the program, since the job was asked to stop; in all peers when the first one has saved."""
        preemption = session.current().preemption
        with preemption.saving():
            places = [c.save_before_end(place) for c in self._checkpoints]
        self._note_that_all_is_saved()
        if any(places):
            _log.warning(
                "tf2dist: the job has saved step %d in %s, and ends with status %d: it goes on from there when it is "
                "started again", self._dispatcher.global_step, ", ".join(places), START_AGAIN,
            )  # fmt: skip
        preemption.end()

    def _place(self, end: int) -> PlaceInEpoch:
        """Where the epoch is whose last step is number `end`, and of which no execution is under way."""
        step = self._dispatcher.global_step
        ends = step == end and self._step.sums_make_logs  # without its logs the next job could not end it
        in_epoch = ends or bool(step % self._steps_per_epoch)
        # What stops it at an epoch's beginning does so again.
        return PlaceInEpoch(ends, step == end - self._steps_per_epoch, in_epoch and bool(self._model.stop_training))

    def _note_that_all_is_saved(self) -> None:
        """Notes it in all peers, when the one that writes has written."""
        collectives.broadcast(self._prepared.strategy, [0])
        session.current().preemption.saved()

    def _ends_early(self, finished: int) -> bool:
        """Whether a callback has stopped the training, after a batch as in Keras, with no batch before it left out."""
        return bool(self._model.stop_training and finished and not self._dispatcher.has_gaps)

    def _account(self, result: ExecutionResult) -> None:
        assert result.sums is not None
        self._tuner.observe(result.steps, result.seconds)
        dropped = result.dropped_gradients
        if dropped is not None:
            self._dropped_gradients = (self._dropped_gradients or 0) + dropped
        self._logged_steps += result.steps
        self._sums.add(result.sums)
        self._state.set_epoch_sums(self._sums.values)
        if self._fails_on_nan and self._sums.loss_is_nan:
            raise nan_error(self._dispatcher.global_step)


def _is_validation_epoch(epoch: int, frequency: int | Sequence[int]) -> bool:
    """Whether to validate after this epoch, counted from 0, as in Keras."""
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency
