"""Runs a cluster of processes on this machine, one for each task."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Mapping, Sequence

from launch import UsageError, linux, ports
from launch.process import Process, supervise
from launch.program import as_python_runs
from tf2dist.cluster import Cluster, Task

LAUNCHED_AT = "TF2DIST_LAUNCHED_AT"  # when the user's command began, in seconds since the epoch


def run(
    program: Sequence[str],
    *,
    ps: int = 0,
    workers: int = 1,
    chief: bool | None = None,
    evaluator: bool = False,
    env: Mapping[str, str] | None = None,
    preload: Sequence[str] | None = None,
    grace: float = 10.0,
    drain: float = 30.0,
    timeout: float | None = None,
    quiet_prefix_for: str | None = None,
) -> int:
    """Runs `program` once for each task of a new cluster on loopback ports; returns the exit status of the job.

    Every process gets its task as TF_CONFIG, and TF2DIST_LAUNCHED_AT unless that is set already.

    Args:
      program: module or script, and its arguments.
      ps: number of parameter servers, 0 or more.
      workers: number of workers, 1 or more.
      chief: whether there is a chief; None: if there are parameter servers, and then it coordinates.
      evaluator: whether there is a task that evaluates the checkpoints of the others.
      env: added to the environment of every process.
      preload: modules that are imported once for all; None for TensorFlow, Keras and this library.
      grace, drain, timeout, quiet_prefix_for: see `process.supervise`.

    Raises:
      UsageError: when a number is out of its range, or there is no such program.
    """
    if ps < 0:
        raise UsageError(f"the number of parameter servers is {ps}; it must be 0 or more")
    if workers < 1:
        raise UsageError(f"the number of workers is {workers}; it must be 1 or more")
    for name, seconds in (("grace", grace), ("drain", drain), ("timeout", timeout)):
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise UsageError(f"{name} is {seconds:g} s; it must be a number of seconds from 0 on")
    argv = as_python_runs(program)
    chief = ps > 0 if chief is None else chief
    counts = {"chief": int(chief), "worker": workers, "ps": ps}
    tasks = [Task(job, index) for job, count in counts.items() for index in range(count)]
    shared = {LAUNCHED_AT: os.environ.get(LAUNCHED_AT) or f"{linux.began():.2f}", **(env or {})}
    with ports.hold(len(tasks)) as found:
        jobs: dict[str, tuple[str, ...]] = {}
        for task, port in zip(tasks, found, strict=True):
            jobs[task.job] = (*jobs.get(task.job, ()), f"127.0.0.1:{port}")
        cluster = Cluster(jobs, tasks[0])
        members = [*tasks, Task("evaluator", 0)] if evaluator else tasks
        processes = [
            Process(
                str(task),
                argv,
                {**shared, "TF_CONFIG": cluster.at(task).to_tf_config()},
                # With servers the first task coordinates, and the others serve; without, all are peers.
                serves=ps > 0 and task in tasks[1:],
            )
            for task in members
        ]
        return supervise(
            processes,
            preload=_preload() if preload is None else preload,
            grace=grace,
            drain=drain,
            timeout=timeout,
            quiet_prefix_for=quiet_prefix_for,
        ).status


def _preload() -> tuple[str, ...]:
    loop = ("tf2dist.loop",) if importlib.util.find_spec("tf2dist.loop") else ()
    return ("tensorflow", "keras", *loop)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `python -m launch local`."""
    parser.add_argument("--ps", type=int, default=0, metavar="N", help="parameter servers (default: 0)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="workers (default: 1)")
    parser.add_argument(
        "--chief",
        action=argparse.BooleanOptionalAction,
        help="a chief, which coordinates (default: if there are parameter servers)",
    )
    parser.add_argument("--evaluator", action="store_true", help="a task that evaluates the checkpoints of the others")
    parser.add_argument(
        "--grace",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL when the job is ended (default: 10)",
    )
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds after which the job is ended")
    parser.add_argument("--preload", help=argparse.SUPPRESS)  # comma-separated modules


def start(options: argparse.Namespace, program: Sequence[str]) -> int:
    """Runs the job that the command line asks for; see `run`."""
    preload = None if options.preload is None else tuple(filter(None, options.preload.split(",")))
    return run(
        program,
        ps=options.ps,
        workers=options.workers,
        chief=options.chief,
        evaluator=options.evaluator,
        preload=preload,
        grace=options.grace,
        timeout=options.timeout,
    )
