"""Notices that a job makes no step for too long, has all tasks log their stacks, and ends it (`--stall_timeout`)."""

# pyright: strict

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from tf2dist.cluster import stall_diagnosis
from tf2dist.cluster.stall_diagnosis import Progress, State
from tf2dist.cluster.task_monitor import FollowerMonitor, LeaderMonitor
from tf2dist.compat.tracing_detection import traces
from tf2dist.system import environment_variables
from tf2dist.system.stacks import places_within

_LOOKS = 20  # in the time after which a job stalls
_ANSWER_SECONDS = 5.0  # for a task to say what it is at, or to log its stacks
_LEADER_SECONDS = 15.0  # for the leader to ask, after a peer has told it


class StallWatch:
    """A thread that counts the seconds in which this process makes no step while a call is to make some.

    Seconds in which the process was stopped are not counted, nor are those in which functions are traced, as long as
    the threads come to places where they were not before, or are in other places at each look. A peer that does not
    lead tells the one that does, which asks all of them; if one has made a step meanwhile, nothing stands still.

    Args:
      limit: seconds.
      name: of this task.
      progress: of this process.
      end: ends this process with a line that says why.
      monitor: of the other tasks; None if there are none.
    """

    def __init__(
        self,
        limit: float,
        name: str,
        progress: Progress,
        end: Callable[[str], object],
        monitor: LeaderMonitor | FollowerMonitor | None,
    ) -> None:
        self._limit, self._name, self._progress, self._end, self._monitor = limit, name, progress, end, monitor
        self._told = threading.Event()  # by a peer that it makes no step
        if isinstance(monitor, LeaderMonitor):
            monitor.on_stalled(self._told.set)
        threading.Thread(target=self._watch, name="stall watch", daemon=True).start()

    def _watch(self) -> None:
        look = min(1.0, self._limit / _LOOKS)
        waited, count = 0.0, self._progress.count
        # One that only wakes up now and then comes back to its places.
        places: deque[int | None] = deque(maxlen=3)
        seen: set[int | None] = {None}  # since the last step
        while True:
            if told := self._told.wait(look):
                self._told.clear()  # only what was seen: a peer may tell it at any time
            waited += look
            if self._progress.count != count:
                seen = {None}
            places.append(place := places_within(traces))
            if place not in seen or (None not in places and len({*places}) == places.maxlen):
                seen.add(place)
                self._progress.moves()
            if isinstance(self._monitor, LeaderMonitor) and self._monitor.waits_for_workers:  # which has a limit
                self._progress.moves()
            if self._progress.count != count or not self._progress.in_call:
                waited, count = 0.0, self._progress.count
            if told or waited >= self._limit * self._progress.patience:
                self._on_stall()
                waited = 0.0

    def _on_stall(self) -> None:
        """Ends the process if the job stands still. Returns if it does not, or if the task that leads decides."""
        began = time.monotonic()
        states: dict[str, State | None] = {self._name: self._progress.state()}
        if isinstance(self._monitor, FollowerMonitor):
            if self._monitor.tell_of_stall(_LEADER_SECONDS):
                return
            states = {str(self._monitor.leader): None}
        elif self._monitor is not None:
            states |= self._monitor.ask(_ANSWER_SECONDS)
        ages = [state.seconds for state in states.values() if state and state.place != stall_diagnosis.Place.SERVES]
        # They are whole seconds. This process may be at a first step, which may take longer.
        if ages and min(ages) < max(1, int(self._limit * self._progress.patience)):
            return
        why = stall_diagnosis.waits_for(states, self._progress.busy_workers())
        if isinstance(self._monitor, LeaderMonitor):
            self._monitor.have_stacks_logged(_ANSWER_SECONDS)
        stall_diagnosis.log_stacks()
        since = max([*ages, int(self._limit)]) + int(time.monotonic() - began)  # tasks that do not answer take time
        self._end(
            f"the job has made no step for {since} s, and waits for {why}; {environment_variables.STALL_TIMEOUT} is "
            f"{self._limit:g} s, and the stacks of all tasks that answer are in their logs"
        )
