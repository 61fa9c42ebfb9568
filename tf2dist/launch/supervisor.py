"""Runs the processes of a job together: options, one attempt after another, and the result."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import select
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tf2dist.cluster.loss_policy import WORKER_RESTARTS
from tf2dist.launch.cluster_layout import Layout
from tf2dist.launch.fault_injector import FaultInjector
from tf2dist.launch.fault_plan import FaultPlan
from tf2dist.launch.fork_server_client import ForkServerClient
from tf2dist.launch.log_files import LogFiles
from tf2dist.launch.process import Process
from tf2dist.launch.process_group import ProcessGroup
from tf2dist.launch.process_group_settings import Settings
from tf2dist.launch.restart_budget import PREEMPTIONS, RestartBudget
from tf2dist.launch.signals import Interrupted, SignalPipe, response
from tf2dist.system.environment_variables import STEP_FILE
from tf2dist.system.output_files import write_text
from tf2dist.system.step_file import StepFile

_ATTEMPT_SECONDS = 1.0  # between the starts of two attempts at least, for what has failed to be there again
_TRY_AGAIN_SECONDS = 2.0  # between two tries to start a job again
_READ_SECONDS = 5.0  # to wait until somebody reads what was printed before


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
        help="how often a failed data worker, and a worker or server under parameter servers, is started again "
        f"in its place, and else the whole job, which goes on from its last checkpoint (default: {WORKER_RESTARTS} for "
        "those and with --workers=MIN:MAX, else 0); a job that was preempted is started again "
        f"{PREEMPTIONS} times besides, unless N is 0",
    )
    group.add_argument("--logs", metavar="DIR", help="a file for what each task prints, instead of showing it")
    group.add_argument("--tee", action="store_true", help="with --logs, show it as well")


def settings_of(options: argparse.Namespace, layout: Layout) -> dict[str, Any]:
    """The values of those options, as keyword arguments of `Settings`."""
    settings = {name: getattr(options, name) for name in ("grace", "timeout", "max_restarts", "logs", "tee")}
    if settings["max_restarts"] is None and layout.fewest_workers is not None:
        settings["max_restarts"] = WORKER_RESTARTS  # or there would be no restart that could do with fewer workers
    return settings


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


def supervise(
    processes: Sequence[Process],
    *,
    next_attempt: Callable[[str], Sequence[Process] | None] | None = None,
    patience: float = 0.0,
    **settings: Any,
) -> Result:
    """Runs the processes until all have ended, or until one failure ends them all.

    What they print goes line by line to the file descriptors 1 and 2, with a prefix. When everything has ended, a
    failure's reason follows on descriptor 2, with the last lines of the process that failed first. SIGINT, SIGTERM
    and SIGHUP end the group; a second one kills it at once. Signals are handled only when this is called from the
    main thread. A process that ends with 75 says that the job has saved and wants to be started again, which it is.

    Args:
      processes: started in this order; their names differ.
      next_attempt: called before all of them are started again, with the name of the one that SIGKILL has ended
        first, empty if none was; returns those to start, or None if they cannot be started yet. Without it they are
        the same ones again.
      patience: seconds during which `next_attempt` is called again and again if they cannot be.
      **settings: see `settings.Settings`.

    Raises:
      UsageError: a setting is out of its range.
      OSError: the helper that forks the processes cannot be started.
    """
    wanted = Settings(**settings)
    deadline = None if wanted.timeout is None else time.monotonic() + wanted.timeout
    logs = LogFiles(wanted.logs, [process.name for process in processes]) if wanted.logs else None
    budget = RestartBudget.of(wanted.max_restarts)
    with contextlib.ExitStack() as stack:
        if logs:
            stack.enter_context(contextlib.closing(logs))
        injector, inherited, env = None, [], dict[str, str]()
        if wanted.faults is not None:
            injector, fd = stack.enter_context(_faults(wanted.faults))
            inherited = [fd]
            env = {STEP_FILE: f"/proc/self/fd/{fd}"}
        signals = stack.enter_context(SignalPipe())
        server: ForkServerClient | None = None
        not_before = 0.0
        result: Result | None = None
        while result is None:
            attempt = [replace(process, env={**process.env, **env}) for process in processes]
            if server is None or server.is_gone:
                server = ForkServerClient(wanted.preload, isolate=wanted.isolate, link=wanted.link, inherited=inherited)
                stack.callback(server.close)
            group = ProcessGroup(attempt, server, wanted, logs, budget, injector, not_before)
            not_before = max(not_before, time.monotonic()) + _ATTEMPT_SECONDS
            if deadline is not None:
                group.set_deadline(deadline, f"had not ended after {wanted.timeout:g} s")
            try:
                while group.running:
                    group.run_once(signals)
            finally:
                group.close()
            if injector:
                injector.end_attempt(0 if group.was_ended_from_outside else group.status)
            if group.was_preempted and budget.take_preemption():
                left = budget.preemption
            elif group.may_be_restarted and budget.take_job():
                left = budget.job
            else:
                result = Result(group.status, group.reason, group.statuses)
                continue
            if next_attempt is not None:
                why = ""
                try:
                    with signals.raising():
                        found = _wait_for_next(functools.partial(next_attempt, group.killed), patience, deadline)
                except Interrupted as interrupted:
                    status, why, _ = response(interrupted.signum, repeated=False)
                    result = Result(status, why, group.statuses)
                except TimeoutError as late:
                    why = str(late)
                    result = Result(1, why, group.statuses)
                else:
                    result = None if found else Result(group.status, group.reason, group.statuses)
                    processes = found or processes
                if result is not None:
                    say(f"the job is not started again: {why}" if why else "the job is not started again")
                    continue
            say(f"the job is started again ({left} more to go)")
        if injector is not None and wanted.faults is not None:
            _report_recovery(injector, wanted.faults, result.status)
    if logs and logs.problem:
        say(f"--logs={wanted.logs}: not everything could be written: {logs.problem}")
    return result


def _wait_for_next(
    next_attempt: Callable[[], Sequence[Process] | None], patience: float, deadline: float | None
) -> Sequence[Process] | None:
    """The processes of the next attempt; None if they cannot be started in time.

    Raises:
      TimeoutError: the time of the job is up.
    """
    end = time.monotonic() + patience
    while True:
        found = next_attempt()
        now = time.monotonic()
        if deadline is not None and now > deadline:
            raise TimeoutError("the time of the job was up when it was to be started again")
        if found is not None or now > end:
            return found
        time.sleep(_TRY_AGAIN_SECONDS)


@contextlib.contextmanager
def _faults(plan: FaultPlan) -> Generator[tuple[FaultInjector, int]]:
    """Yields what carries out a plan, and the descriptor of the file where the job writes its steps for it."""
    fd = os.memfd_create("steps")  # which nothing leaves behind
    try:
        with contextlib.closing(StepFile(f"/proc/self/fd/{fd}")) as steps:
            yield FaultInjector(plan, steps), fd
    finally:
        os.close(fd)


def _report_recovery(injector: FaultInjector, plan: FaultPlan, status: int) -> None:
    """Says how the job has come through its faults, and writes it to the plan's report."""
    seconds = injector.seconds
    lines = injector.recovery.lines(status, seconds)
    say(*(f"chaos: {line}" for line in [*(f"{text} never came" for text in injector.never_came), *lines]))
    if plan.report:
        report = json.dumps(
            {"seed": plan.seed, **injector.recovery.report(status, seconds), "never_came": injector.never_came},
            indent=2,
        )
        try:
            write_text(plan.report, report + "\n")
        except OSError as error:
            say(f"--chaos_report={plan.report} cannot be written: {(error.strerror or str(error)).lower()}")


def say(*lines: str) -> None:
    """Prints lines on standard error, unless nobody reads them."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    for line in lines:
        if not poll.poll(_READ_SECONDS * 1000):
            return
        with contextlib.suppress(OSError):
            print(f"launch: {line}", file=sys.stderr, flush=True)
