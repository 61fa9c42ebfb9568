"""How a job has come through faults: when it made steps again, which it lost, and its goodput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_LEAST_SECONDS, _LEAST_OBSERVATIONS = 2.0, 3  # before the first fault, to know how fast the job is without


@dataclass
class FaultEffect:
    """What came of a fault.

    Attributes:
      kind, task: of the fault.
      seconds: when, since the job began.
      step: how many steps the job had made.
      recovery_seconds: until it had made more than that; None if it never has.
      lost_steps: of those, that were made again.
    """

    kind: str
    task: str
    seconds: float
    step: int
    recovery_seconds: float | None = None
    lost_steps: int = 0


class Recovery:
    """The steps of a job over its time, by what it says of them.

    Steps count from the first call of `fit`, and on over further ones. A job that is started again calls `fit` again,
    from the first call on, and goes on in it from a checkpoint or from its beginning.

    Attributes:
      steps: how many the job has made; less again when some are lost.
      effects: of the faults, in their order.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.effects: list[FaultEffect] = []
        self._ends: dict[int, int] = {}  # the steps of each call, as many as were seen
        self._seen: tuple[int, int] | None = None
        self._first: tuple[float, int] | None = None  # when the first steps were seen, and how many
        self._last = (0.0, 0)
        self._before: tuple[float, int, int] | None = None  # the last ones before a fault, and how many were seen
        self._observations = 0

    def observe(self, now: float, found: tuple[int, int] | None) -> None:
        """Notes what the job says of its steps: (call, steps); None if nothing yet."""
        if found is None or found == self._seen:
            return
        self._seen = found
        call, steps = found
        self._ends[call] = max(self._ends.get(call, 0), steps)
        self.steps = sum(end for number, end in self._ends.items() if number < call) + steps
        for effect in self.effects:
            if effect.recovery_seconds is not None:
                continue
            if self.steps > effect.step:
                effect.recovery_seconds = now - effect.seconds
            else:
                effect.lost_steps = max(effect.lost_steps, effect.step - self.steps)
        if not self.steps:
            return
        self._first = self._first or (now, self.steps)
        self._last = (now, self.steps)
        self._observations += 1
        if not self.effects:
            self._before = (now, self.steps, self._observations)

    def fault(self, now: float, kind: str, task: str) -> None:
        """Notes that a fault comes now."""
        self.effects.append(FaultEffect(kind, task, now, self.steps))

    @property
    def quiet_rate(self) -> float | None:
        """Steps a second before the first fault; None if that came too early to know."""
        if self._first is None or self._before is None:
            return None
        seconds, observations = self._before[0] - self._first[0], self._before[2]
        if seconds < _LEAST_SECONDS or observations < _LEAST_OBSERVATIONS:
            return None
        return (self._before[1] - self._first[1]) / seconds

    @property
    def goodput(self) -> float | None:
        """The steps that the job kept, from the first to the last, by those it would have made at the quiet rate."""
        if not self.effects or self._first is None or not (rate := self.quiet_rate):
            return None
        seconds = self._last[0] - self._first[0]
        return (self._last[1] - self._first[1]) / (rate * seconds)

    def report(self, status: int, seconds: float) -> dict[str, Any]:
        """Returns all of it, with the status and the seconds of the job."""
        return {
            "status": status,
            "seconds": round(seconds, 2),
            "steps": self.steps,
            "quiet_steps_per_second": _rounded(self.quiet_rate),
            "goodput": _rounded(self.goodput),
            "faults": [
                {
                    "kind": effect.kind,
                    "task": effect.task,
                    "seconds": round(effect.seconds, 2),
                    "step": effect.step,
                    "recovery_seconds": _rounded(effect.recovery_seconds),
                    "lost_steps": effect.lost_steps,
                }
                for effect in self.effects
            ],
        }

    def lines(self, status: int, seconds: float) -> list[str]:
        """Returns the same in lines."""
        lines = [
            f"{effect.kind} {effect.task} at {effect.seconds:.1f} s and step {effect.step}: " + _outcome(effect)
            for effect in self.effects
        ]
        lines.append(f"the job ended with status {status} after {self.steps} steps and {seconds:.1f} s")
        if self.goodput is not None and self.quiet_rate is not None:
            lines[-1] += f"; goodput {self.goodput:.2f} (of {self.quiet_rate:.1f} steps/s before the first fault)"
        elif self.effects:
            lines[-1] += "; goodput unknown: too few steps before the first fault"
        return lines


def _outcome(effect: FaultEffect) -> str:
    if effect.recovery_seconds is None:
        return "no step after it"
    lost = f"{effect.lost_steps} step{'s' * (effect.lost_steps != 1)} lost"
    return f"the next step {effect.recovery_seconds:.1f} s later, {lost}"


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)
