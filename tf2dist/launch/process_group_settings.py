"""The settings of a process group, with their defaults: grace periods, time limit, restarts, logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tf2dist.errors import UsageError
from tf2dist.launch.fault_plan import FaultPlan
from tf2dist.system.local_paths import check_local


@dataclass(frozen=True)
class Settings:
    """How a group is run.

    Args:
      preload: modules to import once, before the processes are forked.
      grace: seconds between SIGTERM and SIGKILL.
      drain: seconds that serving processes may run on when the others have ended with 0.
      timeout: seconds until the group must have ended; None for no limit.
      max_restarts: how many restarts there are in all, of a process in its place where it has a coordinator, else of
        the whole group; None for `loss_policy.WORKER_RESTARTS` of the former and none of the latter. A process that
        ends with 2, a wrong command, at its first start is not started again.
      logs: a directory for a file for each process, which takes what it prints.
      tee: show what they print as well.
      isolate: give the processes a network of their own, see `network_namespace`.
      link: make a host of each process in that network, with a link of this queueing discipline, empty for none; see
        `emulated_network`. None for no hosts.
      quiet_prefix_for: the name of the process whose lines are shown without a prefix.
      loss_summary: what the loss of a process means, said once, when the first one is started again; empty for nothing.
      faults: that the group is to meet, see `fault_plan`; None for none, and for no report of its steps.

    Raises:
      UsageError: a number that is out of its range.
    """

    preload: Sequence[str] = ()
    grace: float = 10.0
    drain: float = 30.0
    timeout: float | None = None
    max_restarts: int | None = None
    logs: str | None = None
    tee: bool = False
    isolate: bool = False
    link: str | None = None
    quiet_prefix_for: str | None = None
    loss_summary: str = ""
    faults: FaultPlan | None = None

    def __post_init__(self) -> None:
        for name in ("grace", "drain", "timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds < float("inf"):
                raise UsageError(f"{name} is {seconds:g} s; it must be a number of seconds from 0 on")
        if self.max_restarts is not None and self.max_restarts < 0:
            raise UsageError(f"max_restarts is {self.max_restarts}; it must be 0 or more")
        check_local(f"--logs={self.logs}", self.logs or "")
        if self.tee and not self.logs:
            raise UsageError("--tee shows what goes into files as well, and there are none; add --logs=DIR")
