"""`--chaos`: which faults a job is to meet, and when, as users write them."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tf2dist.errors import UsageError
from tf2dist.system.output_files import check_writable

ANY = "any"
_Number = TypeVar("_Number", int, float)
_FORM = "KIND:TASK@WHEN, as kill:worker-1@10s, stop:ps-0@step500+20s or slow:any@every30s"
_NUMBER = r"\d{1,9}(?:\.\d{1,6})?"
_FAULT = re.compile(rf"(?P<kind>\w+):(?P<task>[\w-]+)@(?P<when>[^+]+)(?:\+(?P<duration>{_NUMBER})s)?", re.ASCII)
_SECONDS = re.compile(rf"(?:(?P<every>every)|(?P<first>{_NUMBER})\.\.)?(?P<last>{_NUMBER})s", re.ASCII)
_STEPS = re.compile(r"step(?:(?P<first>\d{1,12})\.\.)?(?P<last>\d{1,12})", re.ASCII)


class Kind(enum.StrEnum):
    """What happens to a process."""

    KILL = "kill"  # SIGKILL
    TERM = "term"  # SIGTERM, which asks a job to save and to stop
    STOP = "stop"  # SIGSTOP, and SIGCONT when the time is over
    SLOW = "slow"  # stopped nine tenths of the time
    CUT = "cut"  # off the network: nothing goes to it and comes from it

    @property
    def lasts(self) -> bool:
        """Does it take a time, and is over then?"""
        return self in (Kind.STOP, Kind.SLOW, Kind.CUT)


@dataclass(frozen=True)
class Fault:
    """One fault, or one that comes again and again.

    Attributes:
      kind: what happens.
      task: to which process: its name, as "worker 1"; a job, for one of its tasks drawn at random; or `ANY`.
      seconds: since the job began, a moment from the first to the last; None where steps say when.
      steps: of training, of which the job has made so many, a number from the first to the last.
      every: the fault comes again after so many seconds each time, as long as the job runs; `seconds` is the first.
      duration: seconds; of those that last.
      text: as the user has written it.
    """

    kind: Kind
    task: str
    seconds: tuple[float, float] | None = None
    steps: tuple[int, int] | None = None
    every: float | None = None
    duration: float = 10.0
    text: str = dataclasses.field(default="", compare=False)


@dataclass(frozen=True)
class FaultPlan:
    """The faults of a job.

    Attributes:
      faults: in the order in which they were given.
      seed: of what is drawn at random.
      report: a file for what came of them, as JSON; None for none.
    """

    faults: tuple[Fault, ...]
    seed: int = 0
    report: str | None = None

    @property
    def needs_hosts(self) -> bool:
        """Must each process be a host in a network?"""
        return any(fault.kind is Kind.CUT for fault in self.faults)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    group = parser.add_argument_group("breaking it on purpose")
    group.add_argument(
        "--chaos",
        metavar="FAULTS",
        help=f"faults with commas between them, each {_FORM}; KIND: {', '.join(Kind)}; `none` only counts steps",
    )
    group.add_argument("--chaos_seed", type=int, metavar="N", help="for what --chaos draws at random (default: 0)")
    group.add_argument("--chaos_report", metavar="FILE", help="for what came of it, as JSON")


def from_options(options: argparse.Namespace, names: Sequence[str]) -> FaultPlan | None:
    """Returns what the options say; None without --chaos.

    Args:
      names: of the job's processes.

    Raises:
      UsageError: it is no plan for these, or the report cannot be written.
    """
    if options.chaos is None:
        for name in ("chaos_seed", "chaos_report"):
            if getattr(options, name) is not None:
                raise UsageError(f"--{name} is for --chaos, which is not given")
        return None
    if options.chaos_report is not None:
        check_writable(f"--chaos_report={options.chaos_report}", options.chaos_report, takes_special=True)
    return FaultPlan(parse(options.chaos, names), options.chaos_seed or 0, options.chaos_report)


def parse(text: str, names: Sequence[str]) -> tuple[Fault, ...]:
    """Returns the faults that a text names, none for "none".

    Args:
      text: faults with commas between them.
      names: of the job's processes, as "worker 1".

    Raises:
      UsageError: one of them is no fault, or for a task that the job does not have.
    """
    return () if text == "none" else tuple(_parse_one(part.strip(), names) for part in text.split(","))


def _parse_one(text: str, names: Sequence[str]) -> Fault:
    match = _FAULT.fullmatch(text)
    if match is None:
        raise UsageError(f"--chaos: {text!r} is no fault; write {_FORM}")
    if match["kind"] not in {*Kind}:
        raise UsageError(f"--chaos: {text!r}: {match['kind']!r} is none of {', '.join(Kind)}")
    kind, task = Kind(match["kind"]), match["task"].replace("-", " ")
    jobs = {name.partition(" ")[0] for name in names}
    if task not in {*names, *jobs, ANY}:
        known = ", ".join([name.replace(" ", "-") for name in names[:8]] + ["..."] * (len(names) > 8))
        raise UsageError(
            f"--chaos: {text!r}: the job has no task {match['task']!r}; it has {known}; or say a job, as worker, or any"
        )
    if match["duration"] and not kind.lasts:
        raise UsageError(f"--chaos: {text!r}: {kind} takes no time; only stop, slow and cut do")
    duration = float(match["duration"] or Fault.duration)
    if not duration:
        raise UsageError(f"--chaos: {text!r}: {kind} for no time is no fault")
    if steps := _STEPS.fullmatch(match["when"]):
        last = int(steps["last"])
        first = int(steps["first"]) if steps["first"] else last
        return Fault(kind, task, steps=_in_order(text, first, last), duration=duration, text=text)
    if seconds := _SECONDS.fullmatch(match["when"]):
        last = float(seconds["last"])
        first = float(seconds["first"]) if seconds["first"] else last
        every = last if seconds["every"] else None
        if every is not None and every < 0.1:
            raise UsageError(f"--chaos: {text!r}: a fault comes again every 0.1 s at most")
        if every is not None and kind.lasts and every <= duration:
            raise UsageError(
                f"--chaos: {text!r}: it lasts {duration:g} s, and would come again before that; add +{every / 2:g}s"
            )
        return Fault(kind, task, seconds=_in_order(text, first, last), every=every, duration=duration, text=text)
    raise UsageError(
        f"--chaos: {text!r}: {match['when']!r} is no moment; write 10s, 10..60s, every30s, step500 or step100..900"
    )


def _in_order(text: str, first: _Number, last: _Number) -> tuple[_Number, _Number]:
    if first > last:
        raise UsageError(f"--chaos: {text!r}: a range goes from the smaller to the larger number")
    return first, last
