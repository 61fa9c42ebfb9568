"""What each task of a job is at, and for whom a job waits that makes no step any more. Imports no TensorFlow.

A process that runs a loop notes its `Progress`. When one of them has made none for too long, the task that leads asks
all others (`ask`, answered by `state`), and decides by their answers whether the job stands still, and for whom it
waits.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from tf2dist.cluster.heartbeat import TaskConnection
from tf2dist.cluster.task_names import listed
from tf2dist.system.limited_call import call_for
from tf2dist.system.stacks import stacks

_MOST = 10**9 - 1  # that a message holds
_FIRST_STEP = 3.0  # times as long may the first step take: it is compiled
_READ_AGAIN = 30.0  # and where data is read again up to there
_LOG_SECONDS = 5.0  # for stacks: a source may be on a disk that hangs, and so may the log
_Item = TypeVar("_Item")

_log = logging.getLogger("tf2dist")


class Place(enum.IntEnum):
    """Where a task is."""

    OUTSIDE = 0  # of fit, evaluate, predict and map_reduce
    PROGRAM = 1  # inside of one, in a callback, say
    STEPS = 2  # where steps are made: here, on workers, or together with the other peers
    INPUT = 3  # the same, and a batch that Python makes here has not come
    SERVES = 4  # it waits for work


class State(NamedTuple):
    """What a task says of itself.

    Attributes:
      calls: of fit, evaluate, predict and map_reduce that it has begun.
      steps: how many times it has begun to make steps, or to exchange something with the other peers.
      place: a `Place`.
      seconds: since it made a step, traced a function, or began or ended a call.
    """

    calls: int
    steps: int
    place: int
    seconds: int

    def message(self) -> str:
        """Returns it as a message between tasks."""
        return "state " + " ".join(str(min(number, _MOST)) for number in self)

    @classmethod
    def of(cls, numbers: str) -> State:
        """Returns what a message holds behind its first word."""
        return cls(*map(int, numbers.split()))


class Progress:
    """The steps that this process makes, or has made by workers, and what it is at in between.

    Attributes:
      count: goes up with each step, each result of a shard, and each beginning and end of a call.
      patience: how many times as long as others the step may take that is under way.
      busy_workers: returns the names of the workers that have not returned what they run; set by who leads them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._calls = self._steps = self._open = 0
        self._place = Place.OUTSIDE
        self._waits_for_input = False
        self.count = 0
        self.patience = 1.0  # times the limit may the step take that is under way
        self.busy_workers: Callable[[], list[str]] = list

    @property
    def in_call(self) -> bool:
        """Is a call under way, which is to make steps?"""
        return self._open > 0

    @property
    def makes_steps(self) -> bool:
        """Does this process make steps, or exchange something with the other peers? Not in a callback, say."""
        return self._place is Place.STEPS

    def made(self) -> None:
        """Notes that a step was made."""
        self.patience = 1.0
        self._note()

    def moves(self) -> None:
        """Notes that a call moves on without a step: a function is traced, or data is read again."""
        self._note()

    def compiles(self, *, reads_again: bool = False) -> None:
        """Notes that the next step is compiled first.

        Args:
          reads_again: whether the data before that step is read again, too, as when a job is started again.
        """
        self.patience = _READ_AGAIN if reads_again else _FIRST_STEP

    def _note(self) -> None:
        self.count += 1
        self._since = self._clock()

    @contextlib.contextmanager
    def call(self) -> Generator[None]:
        """Returns a context for a call that makes steps."""
        before, self._place = self._place, Place.PROGRAM
        self._calls += 1
        self._open += 1
        self.compiles()
        self._note()
        try:
            yield
        finally:
            self._open -= 1
            self._place = before
            self._note()

    @contextlib.contextmanager
    def steps(self) -> Generator[None]:
        """Returns a context in which steps are made, or waited for."""
        before, self._place = self._place, Place.STEPS
        self._steps += 1
        try:
            yield
        finally:
            self._place, self._waits_for_input = before, False

    def steps_of(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yields what steps result in, each of which is one."""
        left = iter(items)
        while True:
            with self.steps():
                try:
                    item = next(left)
                except StopIteration:
                    return
            self.made()
            yield item

    def waits_for_input(self, waits: bool) -> None:
        """Notes whether a batch that Python makes has not come; in the thread that takes it."""
        self._waits_for_input = waits

    def state(self) -> State:
        """Returns what this task is at."""
        waits = self._waits_for_input and self._place is Place.STEPS
        place = Place.INPUT if waits else self._place
        return State(self._calls, self._steps, place, int(self._clock() - self._since))


def answer(connection: TaskConnection, request: str, progress: Progress | None) -> None:
    """Answers `ask` or `stacks`.

    Args:
      progress: of this process; None if it serves.
    """
    if request == "ask":
        connection.send((progress.state() if progress else State(0, 0, Place.SERVES, 0)).message())
    else:
        log_stacks()
        connection.send("dumped")


def log_stacks() -> None:
    """Logs what each thread of this process is at, and goes on without if that takes long."""

    def log() -> None:
        _log.warning("tf2dist: the job makes no step; the stacks of this task:\n%s", stacks())

    call_for(_LOG_SECONDS, log)


def waits_for(states: Mapping[str, State | None], busy_workers: Iterable[str] = ()) -> str:
    """Returns for whom a job that stands still waits, by the best knowledge: "worker 1 at ..., which ...".

    Args:
      states: of each task by its name; None of one that has not answered.
      busy_workers: workers that have not returned what they run.
    """
    if silent := [name for name, state in states.items() if state is None]:
        return f"{listed(silent)}, which {_has(silent)} not answered"
    loops = {name: state for name, state in states.items() if state is not None and state.place != Place.SERVES}
    if waiting := [name for name, state in loops.items() if state.place == Place.INPUT]:
        return f"the input of {listed(waiting)}, whose next batch has not come"
    last = max((state[:2] for state in loops.values()), default=(0, 0))
    behind = [name for name, state in loops.items() if state[:2] < last]
    outside = [name for name, state in loops.items() if state.place == Place.OUTSIDE]
    if late := [name for name in behind if name in outside]:
        return f"{listed(late)}, which {_has(late)} not called fit, evaluate or predict as the others have"
    if behind:
        return f"{listed(behind)}, which {_has(behind)} not begun the step that the others are in"
    if own := [name for name, state in loops.items() if state.place == Place.PROGRAM]:
        return f"a callback or another part of the program in {listed(own)}"
    if busy := list(busy_workers):
        return f"{listed(busy)}, which {_has(busy)} not returned what {'they run' if busy[1:] else 'it runs'}"
    return f"a step that {listed(list(loops))} {_has(list(loops))} begun, or data that TensorFlow reads for it"


def _has(names: list[str]) -> str:
    return "have" if names[1:] else "has"
