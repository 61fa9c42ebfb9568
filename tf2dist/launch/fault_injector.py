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
from tf2dist.launch.recovery_report import Recovery
from tf2dist.system.step_file import StepFile

INTERVAL = 0.02  # seconds between two looks at the steps and the clock
_CYCLE = 0.5  # seconds in which a slowed process is stopped once
_RUNS = 0.1  # of each cycle
_LONGEST_DELAY = 10.0  # seconds from the step of a fault to a moment that is drawn after it


@dataclass
class _Pending:
    """A fault that is to come.

    Attributes:
      fault: what.
      at: seconds since the job began; None while steps say when.
      step: how many steps the job has made then.
      delay: from there, as a part of the time between two executions.
      draw: which task of several.
    """

    fault: Fault
    at: float | None
    step: int
    delay: float
    draw: random.Random


@dataclass
class _Held:
    """A process that is stopped, slowed down, or cut off.

    Attributes:
      kind: STOP, SLOW or CUT.
      begin, end: when, in seconds of the clock.
      stopped: is it stopped, or cut off, at the moment?
    """

    kind: Kind
    begin: float
    end: float
    stopped: bool = False


class FaultInjector:
    """Does the faults of a plan to processes when their time has come, and has their effects measured.

    A fault for a process that does not run, or is held by another one, comes when it runs again.

    Args:
      plan: the faults.
      steps: where the job's steps are read.
      clock: seconds.
    """

    def __init__(self, plan: FaultPlan, steps: StepFile, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._steps = steps
        self._say: Callable[[str], None] = lambda line: None
        self._cut_off: Callable[[str, bool], None] = lambda name, cut: None
        self._released = True  # is no attempt under way?
        self.recovery = Recovery()
        self._pending: list[_Pending] = []
        for number, fault in enumerate(plan.faults):
            draw = random.Random(f"{plan.seed} {number}")
            at = draw.uniform(*fault.seconds) if fault.seconds else None
            step = draw.randint(*fault.steps) if fault.steps else 0
            # Steps are seen when an execution has ended; a random moment is anywhere from there to the next one's end.
            delay = draw.random() if fault.steps and fault.steps[0] < fault.steps[1] else 0.0
            self._pending.append(_Pending(fault, at, step, delay, draw))
        self._running: dict[str, int] = {}  # file descriptors of processes by their names
        self._held: dict[str, _Held] = {}

    @property
    def seconds(self) -> float:
        """Since the job began."""
        return self._clock() - self._began

    def begin_attempt(self, say: Callable[[str], None], cut_off: Callable[[str, bool], None]) -> None:
        """Notes that processes of the job are about to be started.

        Args:
          say: tells the user something, in one line, without waiting until it is read.
          cut_off: cuts the link of the process with this name, or restores it.
        """
        self._say, self._cut_off, self._released = say, cut_off, False
        self._steps.clear()
        self.recovery.begin_attempt()
        for pending in self._pending:
            if pending.fault.steps:
                pending.at = None  # this attempt has to come to the step first

    def end_attempt(self, status: int) -> None:
        """Notes that all processes have ended, and how; see `Recovery.end_attempt`."""
        self.release()
        self.recovery.observe(self.seconds, self._steps.read())
        self.recovery.end_attempt(status)

    def started(self, name: str, pid: int) -> None:
        """Notes that a process runs."""
        self.ended(name)
        if self._released:
            return
        with contextlib.suppress(OSError):  # it has ended, of which we are told next
            self._running[name] = os.pidfd_open(pid)

    def ended(self, name: str) -> None:
        """Notes that a process does not run any more."""
        if held := self._held.pop(name, None):
            self._say(f"chaos: {name} has ended; {held.kind} is over for the one that takes its place")
        if (fd := self._running.pop(name, None)) is not None:
            os.close(fd)

    def release(self) -> None:
        """Lets go of all processes: this attempt at the job is being ended, and meets no more faults."""
        self._released = True
        for name in [*self._running]:
            if name in self._held:
                self._continue(name, self._held.pop(name).kind)
            self.ended(name)

    @property
    def never_came(self) -> list[str]:
        """The faults that have not come, as the user has written them."""
        met = {id(effect.fault) for effect in self.recovery.effects}
        return [pending.fault.text for pending in self._pending if id(pending.fault) not in met]

    def tick(self) -> None:
        """Does what is due. To be called every `INTERVAL` seconds."""
        now = self.seconds
        self.recovery.observe(now, self._steps.read())
        for name, held in [*self._held.items()]:
            self._hold(name, held, now)
        for pending in [*self._pending]:
            if pending.at is None and (self.recovery.steps or 0) >= pending.step:
                pending.at = now + pending.delay * min(self.recovery.interval, _LONGEST_DELAY)
            if pending.at is None or now < pending.at or not (name := self._choose(pending)):
                continue
            if every := pending.fault.every:
                pending.at += every * (1 + (now - pending.at) // every)  # those that it could not meet are left out
            else:
                self._pending.remove(pending)
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
        duration = f" for {fault.duration:g} s" if fault.kind.lasts else ""
        self._say(f"chaos: {fault.kind} {name}{duration}, at {now:.1f} s and step {self.recovery.reached}")
        self.recovery.fault(now, fault, name)
        if fault.kind.lasts:
            self._held[name] = _Held(fault.kind, now, now + fault.duration)
            self._hold(name, self._held[name], now)
        else:
            self._signal(name, signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM)
            self.ended(name)  # and is no target until it is started again

    def _hold(self, name: str, held: _Held, now: float) -> None:
        """Stops or continues a process as its fault says at this moment."""
        over = now >= held.end
        stops = not over and (held.kind is not Kind.SLOW or (now - held.begin) % _CYCLE >= _RUNS * _CYCLE)
        if stops != held.stopped:
            held.stopped = stops
            if not stops:
                self._continue(name, held.kind)
            elif held.kind is Kind.CUT:
                self._cut_off(name, True)
            else:
                self._signal(name, signal.SIGSTOP)
        if over:
            self._held.pop(name, None)
            again = "is on the network again" if held.kind is Kind.CUT else "runs again as before"
            self._say(f"chaos: {name} {again}, at {now:.1f} s and step {self.recovery.reached}")

    def _continue(self, name: str, kind: Kind) -> None:
        if kind is Kind.CUT:
            self._cut_off(name, False)
        else:
            self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, of which we are told next
            signal.pidfd_send_signal(self._running[name], signum)
