"""Carries out a plan of faults on the processes of a job, over all attempts at it (`--chaos`)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tf2dist.launch.fault_plan import ANY, Fault, FaultPlan, Kind
from tf2dist.launch.recovery import Recovery
from tf2dist.system.step_file import StepFile

INTERVAL = 0.02  # seconds between two looks at the steps and the clock
_CYCLE = 0.5  # seconds in which a slowed process is stopped once
_RUNS = 0.1  # of each cycle


@dataclass
class _Pending:
    """A fault that is to come.

    Attributes:
      fault: what.
      at: seconds since the job began; None where steps say when.
      step: how many steps the job has made then.
      draw: which task of several.
    """

    fault: Fault
    at: float | None
    step: int
    draw: random.Random


@dataclass
class _Held:
    """A process that is stopped, or slowed down.

    Attributes:
      kind: STOP or SLOW.
      begin, end: when, in seconds of the clock.
      stopped: is it stopped at the moment?
    """

    kind: Kind
    begin: float
    end: float
    stopped: bool = False


class FaultInjector:
    """Sends the signals of a plan to processes when their time has come, and has their effects measured.

    A fault for a process that does not run, or is stopped or slowed by another one, comes when it runs again.

    Args:
      plan: the faults.
      steps: where the job's steps are read.
      say: tells the user something, in one line.
      clock: seconds.
    """

    def __init__(
        self, plan: FaultPlan, steps: StepFile, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._began = clock, clock()
        self._steps, self._say = steps, say
        self.recovery = Recovery()
        self._pending: list[_Pending] = []
        for number, fault in enumerate(plan.faults):
            draw = random.Random(f"{plan.seed} {number}")
            at = draw.uniform(*fault.seconds) if fault.seconds else None
            self._pending.append(_Pending(fault, at, draw.randint(*fault.steps) if fault.steps else 0, draw))
        self._running: dict[str, int] = {}  # file descriptors of processes by their names
        self._held: dict[str, _Held] = {}

    @property
    def seconds(self) -> float:
        """Since the job began."""
        return self._clock() - self._began

    def started(self, name: str, pid: int) -> None:
        """Notes that a process runs."""
        self.ended(name)
        with contextlib.suppress(OSError):  # it has ended, of which we are told next
            self._running[name] = os.pidfd_open(pid)

    def ended(self, name: str) -> None:
        """Notes that a process does not run any more."""
        self._held.pop(name, None)
        if (fd := self._running.pop(name, None)) is not None:
            os.close(fd)

    def release(self) -> None:
        """Lets go of all processes: this attempt at the job is being ended, and meets no more faults."""
        for name in [*self._running]:
            if name in self._held:
                self._signal(name, signal.SIGCONT)
            self.ended(name)

    def tick(self) -> None:
        """Does what is due. To be called every `INTERVAL` seconds."""
        now = self.seconds
        self.recovery.observe(now, self._steps.read())
        for name, held in [*self._held.items()]:
            self._hold(name, held, now)
        for pending in [*self._pending]:
            due = self.recovery.steps >= pending.step if pending.at is None else now >= pending.at
            if due and (name := self._choose(pending)):
                self._pending.remove(pending)
                if pending.fault.every and pending.at is not None:
                    pending.at = max(now, pending.at + pending.fault.every)
                    self._pending.append(pending)
                self._carry_out(pending.fault, name, now)

    def _choose(self, pending: _Pending) -> str | None:
        """The process that the fault is for; None if none of those runs that it may be for."""
        task = pending.fault.task
        names = sorted(
            name
            for name in self._running
            if name not in self._held and (task in (ANY, name) or name.partition(" ")[0] == task)
        )
        return pending.draw.choice(names) if names else None

    def _carry_out(self, fault: Fault, name: str, now: float) -> None:
        duration = f" for {fault.duration:g} s" if fault.kind in (Kind.STOP, Kind.SLOW) else ""
        self._say(f"chaos: {fault.kind} {name}{duration}, at {now:.1f} s and step {self.recovery.steps}")
        self.recovery.fault(now, fault.kind, name)
        if fault.kind in (Kind.STOP, Kind.SLOW):
            self._held[name] = _Held(fault.kind, now, now + fault.duration)
            self._hold(name, self._held[name], now)
        else:
            self._signal(name, signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM)
            if fault.kind is Kind.KILL:
                self.ended(name)  # and is no target until it is started again

    def _hold(self, name: str, held: _Held, now: float) -> None:
        """Stops or continues a process as its fault says at this moment."""
        over = now >= held.end
        stops = not over and (held.kind is Kind.STOP or (now - held.begin) % _CYCLE >= _RUNS * _CYCLE)
        if stops != held.stopped:
            held.stopped = stops
            self._signal(name, signal.SIGSTOP if stops else signal.SIGCONT)
        if over:
            self._held.pop(name, None)

    def _signal(self, name: str, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, of which we are told next
            signal.pidfd_send_signal(self._running[name], signum)
