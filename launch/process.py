"""A group of processes that lives and dies together, the way torchrun runs one."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launch import UsageError
from launch.group import Group
from launch.logs import Logs
from launch.signals import Signals


@dataclass(frozen=True)
class Process:
    """One process of a group.

    Args:
      name: how it is called in what the user reads, as "worker 0".
      argv: what Python is to run, as Python takes it: ("-m", module, args...) or (script, args...).
      env: added to the environment.
      serves: it runs for the others and ends by itself when they have.
      command: argv is a command of the system instead.
      replaceable: the others can go on without it until it is started again in its place.
      lost: the status that says that it was lost with its host: what is replaceable is then done without.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    serves: bool = False
    command: bool = False
    replaceable: bool = False
    lost: int | None = None


@dataclass(frozen=True)
class Settings:
    """How a group is run.

    Args:
      preload: modules to import once, before the processes are forked.
      grace: seconds between SIGTERM and SIGKILL.
      drain: seconds that serving processes may run on when the others have ended with 0.
      timeout: seconds until the group must have ended; None for no limit.
      max_restarts: how often something that has failed is started again: a process in its place where it is
        replaceable, else the whole group. Not what ended with 2, a wrong command.
      logs: a directory for a file for each process, which takes what it prints.
      tee: show what they print as well.
      isolate: give the processes a network of their own, see `network`.
      quiet_prefix_for: the name of the process whose lines are shown without a prefix.

    Raises:
      UsageError: a number that is out of its range.
    """

    preload: Sequence[str] = ()
    grace: float = 10.0
    drain: float = 30.0
    timeout: float | None = None
    max_restarts: int = 0
    logs: str | None = None
    tee: bool = False
    isolate: bool = False
    quiet_prefix_for: str | None = None

    def __post_init__(self):
        for name in ("grace", "drain", "timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds < float("inf"):
                raise UsageError(f"{name} is {seconds:g} s; it must be a number of seconds from 0 on")
        if self.max_restarts < 0:
            raise UsageError(f"max_restarts is {self.max_restarts}; it must be 0 or more")
        if self.tee and not self.logs:
            raise UsageError("--tee shows what goes into files as well, and there are none; add --logs=DIR")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of launchers that run a group."""
    group = parser.add_argument_group("running it")
    group.add_argument(
        "--grace",
        type=float,
        default=Settings.grace,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL when the job is ended (default: 10)",
    )
    group.add_argument("--timeout", type=float, metavar="S", help="seconds after which the job is ended")
    group.add_argument(
        "--max_restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often a worker that has failed is started again in its place under parameter servers, and else "
        "the whole job, which goes on from its last checkpoint (default: 0)",
    )
    group.add_argument("--logs", metavar="DIR", help="a file for what each task prints, instead of showing it")
    group.add_argument("--tee", action="store_true", help="with --logs, show it as well")


def settings(options: argparse.Namespace) -> dict:
    """What those options say, as `Settings` takes it."""
    return {name: getattr(options, name) for name in ("grace", "timeout", "max_restarts", "logs", "tee")}


@dataclass(frozen=True)
class Result:
    """How a group ended.

    Args:
      status: 0 when every process ended with 0. Otherwise that of the process that failed first, 128 + n for
        signal n; 128 + n when the launcher itself got signal n; 141 when nobody reads its output any more; 1 when
        time was up.
      reason: the same in words, empty for status 0.
      statuses: by name, of every process that was seen to end; negative for a signal.
    """

    status: int
    reason: str
    statuses: Mapping[str, int]


def supervise(processes: Sequence[Process], **settings) -> Result:
    """Runs the processes until all have ended, or until something went wrong and all are ended for it.

    What they print goes line by line to the file descriptors 1 and 2, with a prefix. When everything has ended, a
    failure's reason follows on descriptor 2, with the last lines of the process that failed first. SIGINT, SIGTERM
    and SIGHUP end the group; a second one kills it at once. Call it from the main thread, or signals are not its
    concern.

    Args:
      processes: started in this order; their names differ.
      **settings: see `Settings`.

    Raises:
      UsageError: a setting that cannot be.
      OSError: when the helper that forks the processes cannot be started.
    """
    wanted = Settings(**settings)
    deadline = None if wanted.timeout is None else time.monotonic() + wanted.timeout
    logs = Logs(wanted.logs, [process.name for process in processes]) if wanted.logs else None
    left = wanted.max_restarts
    with contextlib.closing(logs) if logs else contextlib.nullcontext(), Signals() as signals:
        while True:
            group = Group(processes, wanted, logs, left)
            if deadline is not None:
                late = f"had not ended after {wanted.timeout:g} s"
                group.at(deadline, lambda group=group, late=late: group.stop(1, f"{group.running()} {late}"))
            try:
                while group.alive or group.output:
                    group.turn(signals)
            finally:
                group.close()
            left = group.restarts
            if group.failed is None or group.status in (0, 2) or not left:
                break
            left -= 1
            print(f"launch: the job is started again ({left} more to go)", file=sys.stderr, flush=True)
    if logs and logs.problem:
        print(f"launch: --logs={wanted.logs}: not everything could be written: {logs.problem}", file=sys.stderr)
    statuses = {processes[key].name: status for key, status in group.statuses.items()}
    return Result(group.status or 0, group.reason, statuses)
