"""How a job has come through faults: when it made steps again, which it lost, and its goodput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tf2dist.launch.fault_plan import Fault
from tf2dist.system.step_file import Steps

_LEAST_SECONDS, _LEAST_OBSERVATIONS = 2.0, 3  # before the first fault, to know how fast the job is without


@dataclass
class FaultEffect:
    """What came of a fault.

    Attributes:
      fault: what was to come.
      task: the process that it was done to.
      seconds: when, since the job began.
      step: how many steps the job had made.
      recovery_seconds: until it had made more than that; None if it never has.
      lost_steps: that were made again.
      interval: seconds between the last two times before that it said something of its steps.
      goal: recovered is a job with more steps than these.
      told: when the job first said so, if that was of an execution that was under way when the fault came.
    """

    fault: Fault
    task: str
    seconds: float
    step: int
    interval: float
    goal: int
    recovery_seconds: float | None = None
    lost_steps: int = 0
    told: float | None = None


class Recovery:
    """The steps of a job over its time, by what it says of them.

    Steps count from the first call of `fit`, and on over further ones. A job that is started again, another *attempt*,
    makes the same calls from the first one on, and goes on in each from a checkpoint or from its beginning.

    A job has recovered from a fault when it says that it has made more steps; or the second time, if it says so the
    first time as soon as without a fault, of an execution that had begun before. The last fault of an attempt that ends
    is taken for what has ended it: from that one the job has recovered when the next attempt has made more steps, and
    what is made again was lost by it. So it is where a call goes on from a checkpoint in the same attempt.

    Attributes:
      steps: how many this attempt has made, and those that were kept before; None before it has said so.
      reached: the same, of this attempt or the last one that has said so.
      interval: seconds between the last two times that it said something of them.
      effects: of the faults, in their order.
    """

    def __init__(self) -> None:
        self.steps: int | None = None
        self.interval = 0.0
        self.effects: list[FaultEffect] = []
        self.reached = 0
        self._ends: dict[int, int] = {}  # the steps of each call, as they were seen last
        self._before: dict[int, int] = {}  # the same in the attempt before, of calls that have not begun in this one
        self._cause: FaultEffect | None = None  # of that attempt's end
        self._earlier = 0  # faults that came before this attempt
        self._seen: Steps | None = None
        self._seen_at: float | None = None
        self._origin: int | None = None  # the steps of an earlier job, from whose checkpoint this one goes on
        self._first: tuple[float, int] | None = None  # when the first steps were seen, and how many there were then
        self._last = (0.0, 0)
        self._quiet: tuple[float, int, int] | None = None  # the last ones before a fault, and how many were seen
        self._observations = 0

    def begin_attempt(self) -> None:
        """Notes that the job begins, or begins again."""
        self._before, self._ends = self._before | self._ends, {}
        self._seen = self._seen_at = self.steps = None
        self._earlier = len(self.effects)

    def end_attempt(self, status: int) -> None:
        """Notes that an attempt has ended with this status; 0 also where no fault can have ended it."""
        if status == 0:
            for effect in self.effects:
                if effect.recovery_seconds is None and effect.told is not None:
                    effect.recovery_seconds = effect.told - effect.seconds
        elif self.effects and (len(self.effects) > self._earlier or self.effects[-1].recovery_seconds is None):
            self._cause = self.effects[-1]
            self._cause.recovery_seconds = self._cause.told = None
            self._cause.goal = self.reached
        else:
            self._cause = None  # it has failed without a fault of ours

    def observe(self, now: float, found: Steps | None) -> None:
        """Notes what the job says of its steps; None if nothing yet."""
        if found is None or found == self._seen:
            return
        call, steps = found.call, found.steps
        # Short calls, and the last steps of any, may have been over between two looks.
        self._ends[call - 1] = found.earlier - sum(end for number, end in self._ends.items() if number < call - 1)
        self._before.pop(call - 1, None)
        if steps < self._ends.get(call, 0) and self.effects:  # it goes on from a checkpoint in the same attempt
            cause = self.effects[-1]
            cause.lost_steps += self._ends[call] - steps
            cause.recovery_seconds = cause.told = None
            cause.goal = self.reached
        if call not in self._ends and (before := self._before.pop(call, 0)) > steps and self._cause:
            self._cause.lost_steps += before - steps
        self._ends[call] = steps
        self._seen = found
        self.steps = found.earlier + steps
        self.reached = self.steps
        for number, effect in enumerate(self.effects):
            if effect.recovery_seconds is None and self.steps > effect.goal:
                late = now - effect.seconds > effect.interval
                if late or effect.told is not None or number < self._earlier:
                    effect.recovery_seconds = now - effect.seconds
                effect.told = effect.told or now
        self._note_rate(now, self.steps)

    def fault(self, now: float, fault: Fault, task: str) -> None:
        """Notes that a fault comes now, to this process."""
        self.effects.append(FaultEffect(fault, task, now, self.reached, self.interval, self.reached))

    def _note_rate(self, now: float, steps: int) -> None:
        if self._seen_at is not None:
            self.interval = now - self._seen_at
        self._seen_at = now
        if self._origin is None:
            self._origin = steps  # said before its first step is made, and compiled
        self._last = (now, steps)
        if steps > self._origin:
            self._first = self._first or (now, steps)
            self._observations += 1
            if not self.effects:
                self._quiet = (now, steps, self._observations)

    @property
    def quiet_rate(self) -> float | None:
        """Steps a second before the first fault; None if that came too early to know."""
        if self._first is None or self._quiet is None:
            return None
        seconds, observations = self._quiet[0] - self._first[0], self._quiet[2]
        if seconds < _LEAST_SECONDS or observations < _LEAST_OBSERVATIONS:
            return None
        return (self._quiet[1] - self._first[1]) / seconds

    def goodput(self, status: int, seconds: float) -> float | None:
        """The steps that the job kept after its first ones, by those it would have made at the quiet rate.

        Args:
          status: of the job; unless it is 0 the time counts to the job's end, else to its last step.
          seconds: of the job.

        Returns:
          None if the quiet rate is not known, or no fault came.
        """
        rate = self.quiet_rate
        if not self.effects or self._first is None or not rate:
            return None
        return max(self._last[1] - self._first[1], 0) / (rate * self.goodput_seconds(status, seconds))

    def goodput_seconds(self, status: int, seconds: float) -> float:
        """The time of the goodput, of which the arguments are the same."""
        return (seconds if status else self._last[0]) - (self._first[0] if self._first else 0.0)

    def report(self, status: int, seconds: float) -> dict[str, Any]:
        """Returns all of it, with the status and the seconds of the job."""
        return {
            "status": status,
            "seconds": round(seconds, 2),
            "steps": self.reached,
            "steps_of_earlier_jobs": self._origin or 0,
            "quiet_steps_per_second": _rounded(self.quiet_rate),
            "goodput": _rounded(self.goodput(status, seconds)),
            "goodput_seconds": _rounded(self.goodput_seconds(status, seconds)),
            "faults": [
                {
                    "fault": effect.fault.text,
                    "kind": effect.fault.kind,
                    "task": effect.task,
                    "seconds": round(effect.seconds, 2),
                    "step": effect.step,
                    "recovery_seconds": _rounded(effect.recovery_seconds),
                    "lost_steps": effect.lost_steps,
                }
                for effect in self.effects
            ],
        }

    def _outcome(self, effect: FaultEffect) -> str:
        lost = f"{_counted(effect.lost_steps, 'step')} lost"
        if effect.recovery_seconds is not None:
            return f"the next step {effect.recovery_seconds:.1f} s later, {lost}"
        none = "the job ended before it had recovered" if self.reached > effect.step else "no step after it"
        return f"{none}, {lost}" if effect.lost_steps else none

    def lines(self, status: int, seconds: float) -> list[str]:
        """Returns the same in lines."""
        lines = [
            f"{effect.fault.kind} {effect.task} at {effect.seconds:.1f} s and step {effect.step}: "
            + self._outcome(effect)
            for effect in self.effects
        ]
        earlier = f", {self._origin} of them by an earlier job," if self._origin else ""
        made = _counted(self.reached, "step")
        lines.append(f"the job ended with status {status} after {made}{earlier} and {seconds:.1f} s")
        goodput, rate = self.goodput(status, seconds), self.quiet_rate
        if goodput is not None and rate is not None:
            lines[-1] += f"; goodput {goodput:.2f} (of {rate:.1f} steps/s before the first fault)"
        elif self.effects:
            lines[-1] += "; goodput unknown: too few steps before the first fault"
        return lines


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)
