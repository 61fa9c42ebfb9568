"""What parameter servers do when their coordinator is lost: they save the training that they hold.

The coordinator says beforehand what there is to save (`announce`), while it trains. When it is gone, one of the servers
has all of them write their variables, each its own, as a checkpoint of the training whose directory it is
(`training.checkpoint_files` describes the format): the next job goes on from there, and nothing is lost that was
counted. The name is that of Orbax for what a job saves when a part of it has failed.
"""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.cluster.reachability import answering
from tf2dist.cluster.spec import Cluster, Task
from tf2dist.compat.eager_service import ContextLostError, LeftContext, Result
from tf2dist.errors import reason
from tf2dist.runtime.training_journal import JournalEntry, read_journal
from tf2dist.system.atomic_files import flush, flush_directory, put_in_place

PLAN, HANDLES, COUNTS = "tf2dist_plan", "tf2dist_variables", "tf2dist_counts"  # what is left in a context, by name
_ANSWER_SECONDS = 20.0  # for each call of a server; to write its variables is one
_SAVE_SECONDS = 300.0
_SETTLE_SECONDS = 60.0  # for updates that are under way
_STILL_SECONDS = 0.5  # without an update, after which none is taken to be on its way
_LOOK_SECONDS = 0.02
_NEVER_VALID = 1 << 62  # a count that no fencing token has

_log = logging.getLogger("tf2dist")


class _NotSavedError(Exception):
    """Nothing can be saved; the message says why."""


@dataclass(frozen=True)
class ServerPart:
    """The part of a training that is on one server.

    Attributes:
      task: the index of the server.
      prefix: of the files that it is to write, without the directory.
      numbers: of its variables among all, by which they are called in the files.
      dtypes: of these, by name.
    """

    task: int
    prefix: str
    numbers: Sequence[int]
    dtypes: Sequence[str]


@dataclass(frozen=True)
class Plan:
    """What is to be saved, and how: all that a server needs to know of a training.

    Attributes:
      directory: of the checkpoints, in full; the servers see it by this path.
      journal, identity: where the training's journal is, in full, and which one it is.
      parts: of each server that has variables.
      handles: how many handles were left on each server: those of its variables, and then of states of random numbers.
      seeds: the server of each of these states, its place there among the handles, and its dtype.
      counters: of each optimizer's count of updates the server, its place there, and by how much it is more than the
        count of all updates, where one that is made in part can be told by them.
      never_ended: updates that are not waited for.
      fenced: how many fencing tokens there are; 0 for none.
      steps_per_epoch: updates in an epoch.
      shapes: of the metric sums.
      sums_make_logs: can an epoch be ended by them?
      state: what else `state.json` holds.
    """

    directory: str
    journal: str
    identity: str
    parts: Sequence[ServerPart]
    handles: Mapping[int, int]
    seeds: Sequence[tuple[int, int, str]]
    counters: Sequence[tuple[int, int, int]]
    never_ended: int
    fenced: int
    steps_per_epoch: int
    shapes: Sequence[Sequence[int]]
    sums_make_logs: bool
    state: dict[str, Any]

    def encoded(self) -> bytes:
        """The plan as bytes."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def of(cls, data: bytes) -> Plan:
        """The plan that was `encoded`."""
        found: dict[str, Any] = json.loads(data)
        parts: Any = [ServerPart(**part) for part in found["parts"]]
        handles: Any = {int(server): count for server, count in found["handles"].items()}
        return cls(**{**found, "parts": parts, "handles": handles})


def cpu_of(index: int) -> str:
    """The CPU of a parameter server, in full."""
    return f"/job:ps/replica:0/task:{index}/device:CPU:0"


class KeptTraining:
    """What this server knows of a training that it is to save, or that another server is to save.

    Args:
      cluster: with this process as a parameter server.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._context, self._saver = 0, 0

    def note(self, context: int, saver: int) -> None:
        """Notes what the coordinator says: the number of its context, 0 for nothing to save, and who saves."""
        self._context, self._saver = context, saver

    @property
    def exists(self) -> bool:
        """Is there anything to save?"""
        return self._context != 0

    def save(self) -> None:
        """Saves it, or waits until the server has that does, when the coordinator is lost; logs what has become of it.

        Returns when the servers have written, or when the time for that is up.
        """
        if not self.exists:
            return
        if self._saver != self._cluster.task.index:
            self._wait_for_saver()
            return
        try:
            path, step = _save(self._cluster, self._context)
        except Exception as error:  # a server ends in its own way, whatever is wrong
            why = str(error) if isinstance(error, _NotSavedError) else reason(error)
            _log.warning("tf2dist: the updates since the last checkpoint are lost with the coordinator: %s", why)
        else:
            _log.warning(
                "tf2dist: the coordinator is lost; its training is saved at update %d in %s, and goes on from there "
                "when the job is started again", step, path,
            )  # fmt: skip

    def _wait_for_saver(self) -> None:
        address = self._cluster.address(Task("ps", self._saver))
        deadline = time.monotonic() + _SAVE_SECONDS + _ANSWER_SECONDS
        while time.monotonic() < deadline and answering({address}):
            time.sleep(_STILL_SECONDS)


def _save(cluster: Cluster, context: int) -> tuple[str, int]:
    """Saves the training in this context; returns the path of the checkpoint, and its step.

    Raises:
      _NotSavedError: it cannot be saved; what was there before is.
    """
    try:
        with contextlib.ExitStack() as stack:
            servers = _Servers(cluster, context, stack)
            plan = Plan.of(servers.read_bytes(cluster.task.index, PLAN))
            return _Saving(cluster.task.index, plan, servers).save()
    except (ContextLostError, OSError) as error:
        raise _NotSavedError(" ".join(str(error).split())) from None


class _Servers:
    """The coordinator's context on each server; connections are closed with `stack`."""

    def __init__(self, cluster: Cluster, context: int, stack: contextlib.ExitStack) -> None:
        self._cluster, self._context, self._stack = cluster, context, stack
        self._found: dict[int, Any] = {}

    def on(self, index: int) -> LeftContext:
        if index not in self._found:
            address = self._cluster.address(Task("ps", index))
            left = LeftContext(address, self._context, cpu_of(index), _ANSWER_SECONDS)
            self._found[index] = self._stack.enter_context(contextlib.closing(left))
        return self._found[index]

    def read_bytes(self, index: int, name: str) -> bytes:
        left = self.on(index)
        return left.fetch(left.find(name, [tf.uint8])[0], tf.uint8).tobytes()


class _Saving:
    """One such checkpoint, written by the servers and put together by this one, which has the counts."""

    def __init__(self, here: int, plan: Plan, servers: _Servers) -> None:
        self._plan, self._servers = plan, servers
        self._counts = servers.on(here)
        self._updates, self._under_way, self._tokens = self._counts.find(COUNTS, [tf.resource] * 3)
        self._handles = {
            server: servers.on(server).find(HANDLES, [tf.resource] * count) for server, count in plan.handles.items()
        }

    def save(self) -> tuple[str, int]:
        """See `_save`."""
        plan = self._plan
        if plan.fenced:
            # A worker may not know yet that the coordinator is gone, or not be able to know it.
            self._counts.assign(self._tokens, np.full(plan.fenced, _NEVER_VALID, np.int64))
        step = self._settled()
        journal = self._read_journal()
        state = plan.state | _place(plan, journal, step) | {"global_step": step, "seed_states": self._read_seeds()}
        path = os.path.join(plan.directory, f"checkpoint-{step}")
        unfinished = os.path.join(plan.directory, f".checkpoint-{step}.{secrets.token_hex(4)}.part")
        os.mkdir(unfinished)
        try:
            self._write(unfinished, step, state)
            self._read_journal()  # who trains there meanwhile has another one
            put_in_place(unfinished, path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        if step > journal.step:
            _log.info("tf2dist: results of updates that are lost, for the logs of this epoch: %d", step - journal.step)
        return path, step

    def _read_journal(self) -> JournalEntry:
        journal = read_journal(self._plan.journal, self._plan.identity)
        if journal is None:
            raise _NotSavedError(f"{self._plan.journal}, the training's journal, is not to be seen here, or another's")
        return journal

    def _settled(self) -> int:
        """The count of updates, when none is under way any more."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        last, since = self._read(self._updates), time.monotonic()
        while True:
            under_way, now = self._read_under_way(), self._read(self._updates)
            if under_way or now != last:
                last, since = now, time.monotonic()
            if time.monotonic() - since >= _STILL_SECONDS:
                return now
            if time.monotonic() > deadline:
                raise _NotSavedError(f"{under_way} updates were begun and did not end in {_SETTLE_SECONDS:g} s")
            time.sleep(_LOOK_SECONDS)

    def _read_under_way(self) -> int:
        return max(0, self._read(self._under_way) - self._plan.never_ended)

    def _read(self, handle: Result) -> int:
        return int(self._counts.fetch(self._counts.read(handle, tf.int64), tf.int64))

    def _read_seeds(self) -> list[Any]:
        found: list[Any] = []
        for server, place, name in self._plan.seeds:
            left, dtype = self._servers.on(server), tf.as_dtype(name)
            found.append(left.fetch(left.read(self._handles[server][place], dtype), dtype).tolist())
        return found

    def _write(self, directory: str, step: int, state: dict[str, Any]) -> None:
        written = [part for part in self._plan.parts if part.numbers]
        # What is read is of one moment: TensorFlow gives a variable new memory while somebody has its value.
        values = {part.task: self._values(part) for part in written}
        for server, place, more in self._plan.counters:
            part = next(part for part in written if part.task == server)
            found = int(self._servers.on(server).fetch(values[server][place], tf.as_dtype(part.dtypes[place])))
            if found != step + more:
                raise _NotSavedError(f"an update was made in part: the optimizer counts {found}, for {step + more}")
        if self._read(self._updates) != step or self._read_under_way():
            raise _NotSavedError("updates are still made, by whomever")

        def save(part: ServerPart) -> None:
            left, dtypes = self._servers.on(part.task), [tf.as_dtype(name) for name in part.dtypes]
            prefix = os.path.join(directory, part.prefix)
            names = [str(number) for number in part.numbers]
            left.save(prefix, names, values[part.task], dtypes, seconds=_SAVE_SECONDS)
            if not os.path.exists(f"{prefix}.index"):
                raise _NotSavedError(f"ps {part.task} does not see {self._plan.directory}, as this server does")

        with ThreadPoolExecutor(len(written)) as threads:
            for _ in threads.map(save, written):
                pass
        with open(os.path.join(directory, "state.json"), "w") as file:
            json.dump(state, file)
        for name in os.listdir(directory):
            flush(os.path.join(directory, name))
        flush_directory(directory)

    def _values(self, part: ServerPart) -> list[Result]:
        left, handles = self._servers.on(part.task), self._handles[part.task]
        dtypes = [tf.as_dtype(name) for name in part.dtypes]
        return [left.read(handle, dtype) for handle, dtype in zip(handles, dtypes, strict=False)]


def _place(plan: Plan, journal: JournalEntry, step: int) -> dict[str, Any]:
    """Where in its epochs a training was whose servers have made so many updates: the part of the state that says so.

    Raises:
      _NotSavedError: callbacks may have changed what they will change again, or have stopped the training before.
    """
    first = journal.epochs * plan.steps_per_epoch
    done = step - first
    if journal.between or not 0 <= done <= plan.steps_per_epoch:
        raise _NotSavedError(f"callbacks were being called between two epochs, after update {step}")
    ends = done == plan.steps_per_epoch and plan.sums_make_logs
    flat = journal.sums if done and journal.step > first else np.zeros_like(journal.sums)
    sizes = [int(np.prod(shape)) for shape in plan.shapes]
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    return {
        "metric_sums": [part.reshape(shape).tolist() for part, shape in zip(parts, plan.shapes, strict=True)],
        "ends_epoch": ends,
        "begins_epoch": not done,
        "stops": journal.stops and (ends or 0 < done < plan.steps_per_epoch),
    }
