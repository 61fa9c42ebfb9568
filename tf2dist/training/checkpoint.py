"""`tf2dist.Checkpoint`: saves a training while it runs, and goes on from there when the job starts again."""

# Keras ships no types.
# pyright: strict, reportMissingTypeStubs=false, reportUntypedBaseClass=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
import pickle
import time
from collections.abc import Generator, Mapping
from typing import Any

import keras
import numpy as np

from tf2dist.compat.model import finalize_restored, restored_variables, saves_only_keras_variables
from tf2dist.compat.optimizers import changes_weights_at_the_end
from tf2dist.errors import CheckpointError, UsageError
from tf2dist.runtime import collectives, session
from tf2dist.system.local_paths import check_local
from tf2dist.training import checkpoint_files
from tf2dist.training.best_epoch import BestEpoch
from tf2dist.training.checkpoint_snapshot import Snapshot
from tf2dist.training.checkpoint_state import ELSEWHERE, PlaceInEpoch, SavedProgress, TrainingState
from tf2dist.training.checkpoint_writer import CheckpointWriter
from tf2dist.training.one_training_per_directory import StatusUpdates
from tf2dist.training.status_file import STATUS_FILE, read_stopped_at, write_status

_FAILED_SECONDS = 30.0  # to write what was begun, when training has failed
_PAUSE_SECONDS = 600.0  # the same, when training is to go on from it

_log = logging.getLogger("tf2dist")


class Checkpoint(keras.callbacks.Callback):
    """Saves model, optimizer, step and epoch while `tf2dist.fit` trains, and lets it go on from there.

    One of the callbacks of `fit`; what TensorFlow 1's Supervisor and MonitoredTrainingSession did. `fit` restores the
    newest checkpoint in `directory` and goes on at its step, with its place in the data and the metric sums of its
    epoch. One task of the job reads and writes, so the directory need not be shared, unless an evaluator follows it.

    One that is due at the last step of an epoch is written before the epoch's validation and its callbacks, which the
    next job runs again, so that what they do to the model is not lost.

    When the job is asked to stop, by `tf2dist.preempt` or, under a launcher, by SIGTERM to any of its tasks, `fit`
    saves after the step that is under way and ends the program with status 75, which means "start me again".

    Args:
      directory: created if it does not exist; on a local or mounted file system, no URL.
      every_steps, every_seconds: when to save, whichever comes first, checked after each execution; every 600
        seconds if neither is given. The end of training is always saved.
      keep: how many checkpoints to keep, the newest ones. A damaged one is none of them: when the next one has been
        written it is set aside, as `damaged-checkpoint-N`.
      keep_best: the name of a value in an epoch's logs, such as "val_loss": an epoch where it is better than before is
        saved beside the others, as it is when callbacks were told of its end, and kept until another one is better.
        `tf2dist.load_checkpoint` reads it; no training goes on from it.
      mode: "min" or "max", what is best; "auto" goes by the name.
      in_background: write while training goes on, which needs the memory of what changes meanwhile once more. Training
        waits only where the next checkpoint is due before the last one is written, and at its end.
      sharded: has each parameter server to write and to read its own variables, so that nothing passes through the
        coordinator, and no host needs the memory for all? Servers and coordinator must share the directory then, and
        `tf2dist.load_checkpoint` reads what they write; Keras does not. It holds variables alone: what layers know
        besides, as the vocabulary that a `StringLookup` was adapted to, the program must give them.
      required: does training end where a checkpoint cannot be written, as on a full disk? If not that is a warning, and
        the next one is written when it is due.

    Raises:
      ValueError: numbers that are not positive, a directory that is a URL; from `fit`, a CheckpointError for one that
        does not fit the model.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int = 3,
        in_background: bool = True,
        required: bool = True,
        sharded: bool = False,
        keep_best: str | None = None,
        mode: str = "auto",
    ) -> None:
        super().__init__()
        given = {"every_steps": every_steps, "every_seconds": every_seconds, "keep": keep}
        for name in ("every_steps", "keep"):
            if given[name] is not None and (not isinstance(given[name], int) or isinstance(given[name], bool)):
                raise UsageError(f"{name} must be a whole number, found {given[name]!r}")
        for name, value in given.items():
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be positive, found {value}")
        self.directory: str = os.fspath(directory)
        check_local(f"directory={self.directory}", self.directory)
        self.every_steps, self.keep, self.required, self.sharded = every_steps, keep, required, sharded
        self.every_seconds = 600.0 if every_steps is None and every_seconds is None else every_seconds
        self._state: TrainingState | None = None
        self._writes = False  # one task of the job does
        self._saved_step, self._saved_at = 0, 0.0
        self._saved_place: PlaceInEpoch | None = None  # of the last one, if there is one
        self._is_missing = False  # the last one, which could not be written
        self._has_ended_epoch = False  # in this training
        self._status: StatusUpdates | None = None
        self._stopped_at: int | None = None  # the step of a training that is over, since a callback has stopped it
        self._damaged: list[str] = []  # to be set aside
        self.can_restore = False  # has this training written a checkpoint, or gone on from one?
        self._writer = CheckpointWriter(in_background)
        self._best = None if keep_best is None else BestEpoch(keep_best, mode)

    def begin(self, state: TrainingState, start: int, epochs: int) -> SavedProgress | None:
        """Restores the newest checkpoint into the model. Called by `fit`, in every peer.

        Args:
          state: of the training.
          start: the global step at which it begins without a checkpoint.
          epochs: number of the epoch after the last one; where nothing is left to train, it is said.

        Returns:
          What was restored; None if there is no checkpoint, or only one of an earlier step than `start`.
        """
        paused = self._status if self._state is not None else None
        self.can_restore &= self._state is not None
        self._writer.give_up(_FAILED_SECONDS)  # of an earlier training
        self._state, self._writes = state, collectives.peers(state.strategy)[1] == 0
        self._saved_step, self._saved_at = 0, time.monotonic()
        self._stopped_at, self._saved_place, self._has_ended_epoch, self._is_missing = None, None, False, False
        session.current().preemption.forget(self._note_preemption)
        found, step = None, -1
        if self._writes:
            checkpoint_files.discard_unfinished(self.directory)
            if self.sharded and not saves_only_keras_variables(state.model):
                raise UsageError("sharded=True holds variables alone, and a layer has a save_own_variables of its own")
            self._check_best(state)
            found = self._restore_newest(state, start, epochs)
            self._read_best()
            self.can_restore |= found is not None
            step = -1 if found is None else found.global_step
            if found is not None and read_stopped_at(self.directory) == step:
                found = dataclasses.replace(found, is_over=True)
            # After the check: a checkpoint of another model leaves the status as it was.
            session.current().forget(self._process_fails)
            session.current().preemption.forget(self.preempted)
            self._status = None
            with self._write_may_fail(), self._writing_status():
                if paused is not None:
                    paused.end("training")
                self._status = StatusUpdates(self.directory)
            session.current().on_failure(self._process_fails)
            session.current().preemption.at_end(self.preempted)
        (step,) = collectives.broadcast(state.strategy, [step])
        if step < 0:
            return None
        collectives.broadcast_variables(state.strategy, restored_variables(state.model))
        finalize_restored(state.model)  # the first peer has
        self._saved_step = int(step)
        # Of a model with a step of its own only the first peer knows the logs, and how many there are.
        told = collectives.all_gather(state.strategy, b"" if found is None else pickle.dumps(found))
        restored: SavedProgress = pickle.loads(told[0])
        self._saved_place = restored.place
        return restored

    def _restore_newest(self, state: TrainingState, start: int, epochs: int) -> SavedProgress | None:
        self._damaged = []
        for path in reversed(checkpoint_files.list_checkpoints(self.directory)):
            try:
                step = checkpoint_files.step_of(path)
                if step < start:
                    _log.warning("%s is of step %d, and training begins at %d: it is not restored", path, step, start)
                    return None
                found = checkpoint_files.read_checkpoint(state.model, path)
            except checkpoint_files.DamagedError as error:
                _log.warning("tf2dist: %s is damaged (%s), and is not used", path, error)
                self._damaged.append(path)
                continue
            _say_where_it_goes_on(path, found, state.steps_per_epoch, epochs)
            return found
        if self._damaged:
            _log.warning("tf2dist: no whole checkpoint is left in %s: training begins anew", self.directory)
        return None

    def _check_best(self, state: TrainingState) -> None:
        """Sets the best checkpoint aside if it is damaged, so that another one becomes the best."""
        found = self._best and checkpoint_files.find_best(self.directory, self._best.metric)
        if not found:
            return
        try:
            checkpoint_files.check_checkpoint(state.model, found[0])
        except checkpoint_files.DamagedError as error:
            _log.warning("tf2dist: the best checkpoint %s is damaged (%s), and is set aside", found[0], error)
            with contextlib.suppress(OSError):
                checkpoint_files.set_aside(found[0])

    def _read_best(self) -> None:
        """Notes the value of the best checkpoint that there is."""
        if self._best is not None:
            found = checkpoint_files.find_best(self.directory, self._best.metric)
            self._best.value = math.nan if found is None else found[1]

    def is_due(self) -> bool:
        """Is it time to save? The loop then waits for the executions that are under way, and calls `save`."""
        if self._state is None or not self._writes:
            return False
        with self._write_may_fail():
            self._writer.check()
        if self.every_seconds is not None and time.monotonic() - self._saved_at >= self.every_seconds:
            return True
        if self.every_steps is None:
            return False
        return self._state.global_step // self.every_steps > self._saved_step // self.every_steps

    def save(self, place: PlaceInEpoch = ELSEWHERE, *, again: bool = False) -> None:
        """Writes a checkpoint of the current step, and removes old ones, in the background where it may.

        Args:
          place: in the epoch; a checkpoint of this step with another one is written again.
          again: also if one of this step was written, since when the weights have changed.

        Raises:
          CheckpointError: this one or the last one cannot be written, the disk being full, say (it is an OSError too),
            and is required; no part of it is left, and the ones before it stay.
        """
        assert self._state is not None  # fit has begun
        self._saved_at = time.monotonic()
        progress = self._state.progress(place)
        self._finish_writing()
        again = again or self._is_missing
        if progress.global_step == self._saved_step and self._saved_place in (None, place) and not again:
            return
        snapshot = self._snapshot(progress)
        self._saved_step, self._saved_place, self._is_missing = progress.global_step, place, False
        with self._write_may_fail():
            self._writer.write(snapshot, functools.partial(self._write, snapshot))

    def _snapshot(self, progress: SavedProgress) -> Snapshot:
        assert self._state is not None
        return Snapshot(self._state.model, progress, live=not (self._writer.in_background or self.sharded))

    def _write(self, snapshot: Snapshot) -> None:
        written = checkpoint_files.write_checkpoint(snapshot, self.directory, sharded=self.sharded)
        self.can_restore = True
        checkpoint_files.keep_newest(self.directory, self.keep, written, self._damaged)
        self._damaged = []

    def _finish_writing(self) -> None:
        with self._write_may_fail():
            self._writer.wait()

    def _writing_status(self) -> contextlib.AbstractContextManager[None]:
        return checkpoint_files.writing(os.path.join(self.directory, STATUS_FILE))

    @contextlib.contextmanager
    def _write_may_fail(self) -> Generator[None]:
        """Returns a context for what writes, or says how the last one was written."""
        try:
            yield
        except CheckpointError as error:
            self._is_missing = True
            self._read_best()
            if self.required:
                raise
            _log.warning("tf2dist: %s; it is not required, so that training goes on", error)

    def save_before_end(self, place: PlaceInEpoch) -> str:
        """Saves, in the process that writes, since the job is to end; returns where.

        An empty string in another process, and where no step was made, so that there is nothing to save.

        Raises:
          CheckpointError: as `save`.
        """
        if not self._writes:
            return ""
        self.save(place)
        self._finish_writing()
        is_saved = self._saved_step or self._saved_place is not None
        return self.directory if is_saved and not self._is_missing else ""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._has_ended_epoch = True
        if self._state is None or not self._writes or self._best is None:
            return
        value = (logs or {}).get(self._best.metric)
        if value is None or np.ndim(value):
            _log.warning(
                "tf2dist: epoch %d has no %s, by which the best checkpoint is kept; it has %s",
                epoch + 1, self._best.metric, ", ".join(logs or {}) or "nothing",
            )  # fmt: skip
        elif self._best.is_improved_by(float(value)):
            self._save_best(self._state, float(value))

    def _save_best(self, state: TrainingState, value: float) -> None:
        """Writes what was evaluated, beside what training goes on from: callbacks may have put averages there."""
        assert self._best is not None
        self._finish_writing()
        self._best.value = value
        snapshot = self._snapshot(state.progress(ELSEWHERE))
        with self._write_may_fail():
            self._writer.write(
                snapshot,
                functools.partial(
                    checkpoint_files.write_best, snapshot, self.directory, self._best, sharded=self.sharded
                ),
            )

    def save_at_end(self) -> None:
        """Saves when all updates are made and all epochs have ended, before callbacks are told of the end of `fit`."""
        if self._state is not None and self._writes:
            self.save()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        if self._state is not None and self._writes:
            self._finish_writing()
            self._stopped_at = self._state.global_step if self._state.model.stop_training else None
            averaged = changes_weights_at_the_end(self._state.model.optimizer)
            ends = self._saved_place not in (None, ELSEWHERE) and self._has_ended_epoch
            if self._state.has_trained or (averaged and self._saved_step) or ends:
                self.save(again=averaged or self._state.changes_at_the_end)
                self._finish_writing()
            with self._write_may_fail(), self._writing_status():
                self._end_status("done")
            session.current().preemption.at_end(self._note_preemption)
        self._state = None

    def pause(self) -> int:
        """Notes that training stands still, and begins again from a checkpoint; what was begun is written before.

        Returns the global step that it had reached; -1 if it had not begun, or has ended.
        """
        self._writer.give_up(_PAUSE_SECONDS)
        return self._state.reached if self._state is not None else -1

    @property
    def saved_step(self) -> int | None:
        """The step of the checkpoint that was due last; None if that could not be written."""
        return None if self._is_missing else self._saved_step

    def preempted(self) -> None:
        """Says that training has ended since the job was asked to stop, and goes on when it is started again."""
        if self._state is not None and self._writes:
            self._writer.give_up(_FAILED_SECONDS)
            with contextlib.suppress(OSError):
                self._end_status("preempted")
        self._state = None

    def _note_preemption(self) -> None:
        """Writes status "preempted" for a training that has ended, with the step at which a callback has stopped it."""
        write_status(self.directory, "preempted", stopped_at=self._stopped_at)

    def failed(self, seconds: float = _FAILED_SECONDS) -> None:
        """Says that training ended with an error; what was saved stays, and what was begun is written in this time."""
        if self._state is not None and self._writes:
            self._writer.give_up(seconds)
            with contextlib.suppress(OSError):  # the disk may be why
                self._end_status("failed")
        self._state = None

    def _process_fails(self) -> None:
        """The same for a process that is about to end: whoever ends it waits 5 s for all that is to be done before."""
        self.failed(3.0)

    def _end_status(self, status: str) -> None:
        session.current().forget(self._process_fails)
        session.current().preemption.forget(self.preempted)
        if self._status is not None:
            self._status.end(status)


def _say_where_it_goes_on(path: str, found: SavedProgress, steps_per_epoch: int, epochs: int) -> None:
    """Logs what a user may not expect of the training that goes on from this checkpoint."""
    step, theirs = found.global_step, found.steps_per_epoch
    is_one_pass = epochs == 1 and theirs is not None and step <= theirs  # which only lasts longer now, or ends earlier
    if theirs is not None and theirs != steps_per_epoch and not is_one_pass:
        _log.warning(
            "tf2dist: %s is of epochs of %d updates, and this training has %d in each, as with another batch size or "
            "other data: it goes on at update %d, which is in epoch %d here and was in epoch %d",
            path, theirs, steps_per_epoch, step, step // steps_per_epoch + 1, step // theirs + 1,
        )  # fmt: skip
    if step >= epochs * steps_per_epoch and not found.place.ends:  # whose end is to come
        _log.info(
            "tf2dist: the training is complete: %s is of update %d, and %d epochs of %d updates were to be made; "
            "nothing is trained", path, step, epochs, steps_per_epoch,
        )  # fmt: skip
