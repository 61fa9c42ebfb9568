"""Runs the processes of a job together: options, one attempt after another, and the result."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf2dist.cluster.loss_policy import WORKER_RESTARTS
from tf2dist.launch.log_files import LogFiles
from tf2dist.launch.process import Process
from tf2dist.launch.process_group import ProcessGroup
from tf2dist.launch.process_group_settings import Settings
from tf2dist.launch.restarts import PREEMPTIONS, RestartBudget
from tf2dist.launch.signals import SignalPipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of backends that run a group."""
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
        metavar="N",
        help="how often a worker that has failed is started again in its place under parameter servers, and else "
        f"the whole job, which goes on from its last checkpoint (default: {WORKER_RESTARTS} for workers under "
        f"parameter servers, 0 for the whole job); a job that was preempted is started again {PREEMPTIONS} times "
        "besides, unless N is 0",
    )
    group.add_argument("--logs", metavar="DIR", help="a file for what each task prints, instead of showing it")
    group.add_argument("--tee", action="store_true", help="with --logs, show it as well")


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The values of those options, as keyword arguments of `Settings`."""
    return {name: getattr(options, name) for name in ("grace", "timeout", "max_restarts", "logs", "tee")}


@dataclass(frozen=True)
class Result:
    """How a group ended.

    Args:
      status: 0 when every process ended with 0, but for those that a coordinator went on without. Otherwise that of
        the process that failed first, 128 + n for signal n; 128 + n when the launcher itself got signal n; 75 when a
        process or the launcher was asked to stop, the job has saved, and it is not started again here; 141 when nobody
        reads its output any more; 1 when time was up.
      reason: the same in words, empty for status 0.
      statuses: by name, of every process that was seen to end; negative for a signal.
    """

    status: int
    reason: str
    statuses: Mapping[str, int]


def supervise(processes: Sequence[Process], **settings: Any) -> Result:
    """Runs the processes until all have ended, or until one failure ends them all.

    What they print goes line by line to the file descriptors 1 and 2, with a prefix. When everything has ended, a
    failure's reason follows on descriptor 2, with the last lines of the process that failed first. SIGINT, SIGTERM
    and SIGHUP end the group; a second one kills it at once. Signals are handled only when this is called from the
    main thread. A process that ends with 75 says that the job has saved and wants to be started again, which it is.

    Args:
      processes: started in this order; their names differ.
      **settings: see `settings.Settings`.

    Raises:
      UsageError: a setting is out of its range.
      OSError: the helper that forks the processes cannot be started.
    """
    wanted = Settings(**settings)
    deadline = None if wanted.timeout is None else time.monotonic() + wanted.timeout
    logs = LogFiles(wanted.logs, [process.name for process in processes]) if wanted.logs else None
    budget = RestartBudget.of(wanted.max_restarts)
    with contextlib.closing(logs) if logs else contextlib.nullcontext(), SignalPipe() as signals:
        while True:
            group = ProcessGroup(processes, wanted, logs, budget)
            if deadline is not None:
                group.set_deadline(deadline, f"had not ended after {wanted.timeout:g} s")
            try:
                while group.running:
                    group.run_once(signals)
            finally:
                group.close()
            if group.was_preempted and budget.take_preemption():
                left = budget.preemption
            elif group.may_be_restarted and budget.take_job():
                left = budget.job
            else:
                break
            _say(f"the job is started again ({left} more to go)")
    if logs and logs.problem:
        _say(f"--logs={wanted.logs}: not everything could be written: {logs.problem}")
    return Result(group.status, group.reason, group.statuses)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(f"launch: {text}", file=sys.stderr, flush=True)
