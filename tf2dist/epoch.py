"""The outer loop of training: epochs of executions, with callbacks in between."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from tf2dist import checks, peers
from tf2dist.checkpoint import Checkpoint
from tf2dist.hooks import has, wants_batch_logs
from tf2dist.pace import Pace
from tf2dist.program import Program, Totals


class Training:
    """One call of `fit`. *Position* is the number of updates since its epoch 0, whoever made them.

    Args:
      program, feed: what is trained, on what.
      hooks: the callbacks.
      per_epoch: updates in an epoch.
      pace: how many steps an execution takes.
    """

    def __init__(self, program: Program, feed, hooks: keras.callbacks.CallbackList, per_epoch: int, pace: Pace):
        self.program, self.feed, self.hooks, self.per_epoch, self.pace = program, feed, hooks, per_epoch, pace
        self.model, self.dispatcher = program.model, program.dispatcher
        self._nan_stops = not has(hooks, keras.callbacks.TerminateOnNaN)
        self._wants_logs = wants_batch_logs(hooks)
        self._checkpoints = [c for c in hooks.callbacks if isinstance(c, Checkpoint)]
        self._dropped = 0

    def run(self, initial_epoch: int, epochs: int, validation, frequency: int | Sequence[int]):
        """Trains until `epochs`; returns the history."""
        model, hooks = self.model, self.hooks
        position, totals = self._begin(initial_epoch)
        iterator = self.dispatcher.stream(self.feed, position)
        logs: dict = {}
        trained = position < epochs * self.per_epoch
        for epoch in range(position // self.per_epoch, epochs):
            hooks.on_epoch_begin(epoch)
            self.epoch = epoch
            logs = self._epoch(iterator, totals or Totals(self.program.steps(self.feed)))
            totals = None
            if validation is not None and _due(epoch, frequency):
                logs |= {f"val_{name}": value for name, value in self.program.evaluate(validation, hooks).items()}
            hooks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        self.dispatcher.stop()
        if trained:
            model.optimizer.finalize_variable_values(model.trainable_variables)
        hooks.on_train_end(logs)
        return model.history

    def _begin(self, initial_epoch: int) -> tuple[int, Totals | None]:
        """Where training begins, and the totals of a part of an epoch that was trained before it was killed."""
        model = self.model
        model._initial_epoch = 0
        self.hooks.on_train_begin()
        first = model._initial_epoch or initial_epoch
        if self.hooks.restores:  # the first peer has read it from its disk
            (first,) = peers.from_first(self.program.strategy, [first])
            peers.copy_first(self.program.strategy, [*model.variables, *model.optimizer.variables])
        position, totals = int(first) * self.per_epoch, None
        for checkpoint in self._checkpoints:
            found = checkpoint.begin(self)
            if found is not None and found.position > position:
                position, totals = found.position, Totals(self.program.steps(self.feed))
                if found.position % self.per_epoch:
                    totals.add(found.totals)
        return position, totals

    def totals_at(self, position: int) -> list:
        """The sums of the epoch that `position` is in: none at its beginning."""
        return self.totals.sums if position % self.per_epoch else [0 * s for s in self.totals.sums]

    @property
    def position(self) -> int:
        """Updates since epoch 0."""
        return self.dispatcher.position

    def _epoch(self, iterator, totals: Totals) -> dict:
        """Runs the updates that the epoch lacks; returns its logs. Callbacks may stop it in between."""
        self.totals, self._dropped = totals, 0
        until = (self.epoch + 1) * self.per_epoch
        position = self.position
        finished = position - self.epoch * self.per_epoch
        # What counts is what was applied: of an execution that a dying worker had begun, some steps are missing.
        while position < until and not self.model.stop_training:
            finished = self._run(iterator, until, position, finished)
            position = self.position
        logs = totals.logs()
        return logs if self._dropped is None else logs | {"dropped_gradients": self._dropped}

    def _run(self, iterator, until: int, position: int, finished: int) -> int:
        """Runs updates from `position` to `until`; `finished` are those of the epoch, and are returned."""
        dispatcher, hooks, model = self.dispatcher, self.hooks, self.model
        waiting, lost = 0, False  # executions under way; has one of them been lost?
        while True:
            due = [c for c in self._checkpoints if c.due()]
            if due and not waiting:  # nothing changes while it is saved
                for checkpoint in due:
                    checkpoint.save()
                due = []
            while position < until and not (due or lost or model.stop_training) and waiting < dispatcher.in_flight:
                n = self.pace.next(until - position, dispatcher.in_flight)
                hooks.on_train_batch_begin(finished)
                with checks.ran_out():
                    dispatcher.run(self.program.train, iterator, n)
                position, waiting = position + n, waiting + 1
            if not waiting:
                return finished
            with checks.ran_out():
                done = dispatcher.result()
            finished, waiting = finished + done.steps, waiting - 1
            if not done.steps:
                lost = True
                continue
            self._account(done)
            hooks.on_train_batch_end(finished - 1, self.totals.logs() if self._wants_logs else None)

    def _account(self, done) -> None:
        self.pace.observe(done.steps, done.seconds)
        self._dropped = None if done.dropped is None else self._dropped + done.dropped
        if done.totals is None:
            return
        self.totals.add(done.totals)
        if self._nan_stops and self.totals.nan:
            raise checks.is_nan(self.position)


def _due(epoch: int, frequency: int | Sequence[int]) -> bool:
    """Is this epoch, counted from 0, one to validate after? As in Keras."""
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency
