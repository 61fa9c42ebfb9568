"""Tells parameter servers what to save should this process, their coordinator, be lost while it trains."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Collection, Generator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.compat import eager_service
from tf2dist.compat.model import saves_only_keras_variables, seed_states
from tf2dist.compat.variables_in_scope import parameter_server_of
from tf2dist.execution.dispatcher_interface import CountsOnServers
from tf2dist.runtime import session
from tf2dist.runtime.emergency_checkpoint import COUNTS, HANDLES, PLAN, Plan, ServerPart, cpu_of
from tf2dist.runtime.monitored_servers import MonitoredServers
from tf2dist.runtime.training_journal import JournalEntry, TrainingJournal
from tf2dist.training.checkpoint import Checkpoint
from tf2dist.training.checkpoint_compatibility import shapes_of
from tf2dist.training.checkpoint_files import JOURNAL
from tf2dist.training.checkpoint_shards import prefix_of
from tf2dist.training.checkpoint_snapshot import stored_variables
from tf2dist.training.checkpoint_state import TrainingState

_log = logging.getLogger("tf2dist")


class EmergencyPlan:
    """What servers know of a training, kept up to date; without a journal nothing is announced, and nothing is done."""

    def __init__(self, journal: TrainingJournal | None = None) -> None:
        self._journal = journal
        self._epoch = 0

    def begin_epoch(self, epoch: int, step: int, sums: Sequence[np.ndarray], *, stops: bool) -> None:
        """Notes that callbacks were told of the beginning of an epoch, or of what is left of it from `step` on."""
        self._epoch = epoch
        self._write(JournalEntry(step, self._epoch, stops=stops, sums=_flat(sums)), flush=True)

    def reach(self, step: int, sums: Sequence[np.ndarray], *, stops: bool) -> None:
        """Notes the metric sums of the epoch up to a global step, and whether a callback has stopped the training."""
        self._write(JournalEntry(step, self._epoch, stops=stops, sums=_flat(sums)))

    def end_epoch(self) -> None:
        """Notes that callbacks are about to be told that the epoch has ended, and may change anything from now on."""
        self._write(JournalEntry(0, self._epoch, between=True), flush=True)

    def _write(self, entry: JournalEntry, *, flush: bool = False) -> None:
        if self._journal is None:
            return
        try:
            self._journal.write(entry, flush=flush)
        except OSError as error:
            _log.warning("tf2dist: %s cannot be written: %s", self._journal.path, error.strerror)
            self._journal = None


@contextlib.contextmanager
def announced(
    checkpoints: Sequence[Checkpoint],
    state: TrainingState,
    counts: CountsOnServers | None,
    *,
    sums_make_logs: bool,
) -> Generator[EmergencyPlan]:
    """Yields a plan that is announced to the parameter servers while the block runs, if they can save this training.

    They can if it has a `Checkpoint`, and all its variables are Keras's and on them.

    Args:
      checkpoints: of the training, which have begun.
      state: of the training.
      counts: where servers count its updates; None where there are no servers.
      sums_make_logs: can an epoch be ended by its metric sums?
    """
    servers = session.current().servers
    if not checkpoints or counts is None or servers is None:
        yield EmergencyPlan()
        return
    parts = _Parts(state)
    if not parts.can_be_saved:
        yield EmergencyPlan()
        return
    try:
        journal = TrainingJournal(os.path.join(checkpoints[-1].directory, JOURNAL))
    except OSError as error:
        _log.warning("tf2dist: %s: should this process be lost, its training is not saved", error)
        yield EmergencyPlan()
        return
    try:
        plan = EmergencyPlan(journal)
        plan.end_epoch()
        parts.announce(servers, counts, checkpoints[-1].directory, journal, sums_make_logs=sums_make_logs)
        yield plan
    finally:
        servers.note_kept(0, 0)
        journal.close()
        parts.drop({task.index for task in servers.parameter_servers()})


class _Parts:
    """The variables of a training, by the servers that they are on."""

    def __init__(self, state: TrainingState) -> None:
        self._state, model = state, state.model
        self._variables = stored_variables(model) if saves_only_keras_variables(model) else []
        self._seeds = seed_states(model)
        self._places = [parameter_server_of(v.value.device) for v in self._variables + self._seeds]
        self._left: list[tuple[str, int]] = []
        self._used: dict[int, list[int]] = defaultdict(list)
        for number, place in enumerate(self._places):
            if place is not None:
                self._used[place].append(number)

    @property
    def can_be_saved(self) -> bool:
        """Are there variables, and all of them on servers?"""
        return bool(self._variables) and None not in self._places

    def announce(
        self,
        servers: MonitoredServers,
        counts: CountsOnServers,
        directory: str,
        journal: TrainingJournal,
        *,
        sums_make_logs: bool,
    ) -> None:
        """Leaves on each server what is needed to save the training, and tells all of them."""
        everything = [v.value for v in self._variables + self._seeds]
        saver = parameter_server_of(counts.updates.device)
        assert saver is not None
        tokens = counts.updates if counts.tokens is None else counts.tokens
        plan = self._plan(counts, directory, journal, sums_make_logs=sums_make_logs)
        self._left = [*((HANDLES, server) for server in self._used), (COUNTS, saver), (PLAN, saver)]
        for server, numbers in self._used.items():
            eager_service.leave(HANDLES, cpu_of(server), [everything[number].handle for number in numbers])
        eager_service.leave(COUNTS, cpu_of(saver), [counts.updates.handle, counts.under_way.handle, tokens.handle])
        eager_service.leave(PLAN, cpu_of(saver), [tf.constant(np.frombuffer(plan.encoded(), np.uint8))])
        servers.note_kept(eager_service.context_id(), saver)

    def drop(self, present: Collection[int]) -> None:
        """Drops what was left on those servers that are there, which else keeps the variables alive."""
        for name, server in self._left:
            if server not in present:
                continue
            with contextlib.suppress(tf.errors.OpError):
                eager_service.drop(name, cpu_of(server))

    def _plan(self, counts: CountsOnServers, directory: str, journal: TrainingJournal, *, sums_make_logs: bool) -> Plan:
        model, stored = self._state.model, len(self._variables)
        written = {server: [n for n in numbers if n < stored] for server, numbers in self._used.items()}
        written = {server: numbers for server, numbers in written.items() if numbers}
        where = {n: (server, place) for server, numbers in self._used.items() for place, n in enumerate(numbers)}
        updates = int(counts.updates.numpy())
        counters = []
        for number, variable in enumerate(self._variables):
            # One server applies and counts as a whole, and what a callback has made of a counter is as it should be.
            if len(self._used) > 1 and any(variable.value is counter for counter in counts.followers):
                counters.append((*where[number], int(variable.numpy()) - updates))
        return Plan(
            directory=os.path.abspath(directory),
            journal=journal.path,
            identity=journal.identity,
            parts=[
                ServerPart(
                    server, prefix_of(shard, len(written)), numbers, [_dtype(self._variables[n]) for n in numbers]
                )
                for shard, (server, numbers) in enumerate(written.items())
            ],
            handles={server: len(numbers) for server, numbers in self._used.items()},
            seeds=[(*where[stored + n], _dtype(seed)) for n, seed in enumerate(self._seeds)],
            counters=counters,
            never_ended=int(counts.under_way.numpy()),  # of trainings that have failed: none is under way
            fenced=0 if counts.tokens is None else int(tf.size(counts.tokens)),
            steps_per_epoch=self._state.steps_per_epoch,
            shapes=[np.shape(each) for each in self._state.zero_sums],
            sums_make_logs=sums_make_logs,
            state={
                "steps_per_epoch": self._state.steps_per_epoch,
                "shapes": shapes_of(model),
                "variables": stored,
                "best": None,
                "emergency": True,
                "shards": [*written.values()],
            },
        )


def _flat(sums: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(each) for each in sums]) if sums else np.zeros(0)


def _dtype(variable: Any) -> str:
    return variable.value.dtype.name
