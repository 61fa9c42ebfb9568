"""A group of processes that lives and dies together, the way torchrun runs one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launch.group import Group
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
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    serves: bool = False
    command: bool = False


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


def supervise(
    processes: Sequence[Process],
    *,
    preload: Sequence[str] = (),
    grace: float = 10.0,
    drain: float = 30.0,
    timeout: float | None = None,
    quiet_prefix_for: str | None = None,
) -> Result:
    """Runs the processes until all have ended, or until something went wrong and all are ended for it.

    What they print goes line by line to the file descriptors 1 and 2, with a prefix. When everything has ended, a
    failure's reason follows on descriptor 2, with the last lines of the process that failed first. SIGINT, SIGTERM
    and SIGHUP end the group; a second one kills it at once. Call it from the main thread, or signals are not its
    concern.

    Args:
      processes: started in this order; their names differ.
      preload: modules to import once, before the processes are forked.
      grace: seconds between SIGTERM and SIGKILL.
      drain: seconds that serving processes may run on when the others have ended with 0.
      timeout: seconds until the group must have ended; None for no limit.
      quiet_prefix_for: the name of the process whose lines are shown without a prefix.

    Raises:
      OSError: when the helper that forks the processes cannot be started.
    """
    started = time.monotonic()
    with Signals() as signals:
        group = Group(processes, preload, grace, drain, quiet_prefix_for)
        if timeout is not None:
            group.at(started + timeout, lambda: group.stop(1, f"{group.running()} had not ended after {timeout:g} s"))
        try:
            while group.alive or group.output:
                group.turn(signals)
        finally:
            group.close()
    statuses = {processes[key].name: status for key, status in group.statuses.items()}
    return Result(group.status or 0, group.reason, statuses)
