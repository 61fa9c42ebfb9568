"""Runs a cluster of processes on this machine, one for each task."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence

from launch import UsageError, layout, linux, network, ports, process
from launch.layout import HERE, THREADS, Layout
from launch.process import Process, Settings, supervise
from launch.program import as_python_runs
from tf2dist.cluster import Cluster

LAUNCHED_AT = "TF2DIST_LAUNCHED_AT"  # when the user's command began, in seconds since the epoch
_LOOPBACK = (HERE, "127.0.0.1")


def run(
    program: Sequence[str],
    *,
    ps: int = 0,
    workers: int = 1,
    chief: bool | None = None,
    evaluator: bool = False,
    env: Mapping[str, str] | None = None,
    preload: Sequence[str] | None = None,
    threads: int | None = None,
    **settings,
) -> int:
    """Runs `program` once for each task of a new cluster on loopback ports; returns the exit status of the job.

    Every process gets its task as TF_CONFIG, and TF2DIST_LAUNCHED_AT unless that is set already.

    Args:
      program: module or script, and its arguments.
      ps, workers, chief, evaluator: see `layout.counted`.
      env: added to the environment of every process.
      preload: modules that are imported once for all; None for TensorFlow, Keras and this library.
      threads: that one operation of one process may use; None for an equal part of the cores for each worker, 0 to
        leave it to TensorFlow.
      **settings: see `process.Settings`. Where the system refuses to isolate, that is said, and the job runs.

    Raises:
      UsageError: when a number is out of its range, or there is no such program.
    """
    wanted = layout.counted(ps, workers, chief, evaluator)
    return _run(program, wanted, None, env or {}, preload, threads, settings)


def _run(program, wanted: Layout, port: int | None, env: Mapping[str, str], preload, threads, settings: dict) -> int:
    Settings(**settings)
    argv = as_python_runs(program)
    if settings.get("isolate") and (why := network.refusal()):
        print(
            f"launch: no private network here ({why.lower()}): other machines can reach the job's ports",
            file=sys.stderr,
        )
        settings["isolate"] = False
    shared = _threads(threads, wanted) | {
        LAUNCHED_AT: os.environ.get(LAUNCHED_AT) or f"{linux.began():.2f}",
        **env,
    }
    # In a network of its own nobody else takes a port.
    fixed = port or settings.get("isolate")
    with contextlib.nullcontext() if fixed else ports.hold(len(wanted.places)) as free:
        processes = _processes(argv, wanted, _cluster(wanted, port, free), shared)
        return supervise(processes, preload=_preload() if preload is None else preload, **settings).status


def _cluster(wanted: Layout, port: int | None, free: Sequence[int] | None = None) -> Cluster:
    """The cluster on 127.0.0.1, on these ports in turn where there are any."""
    if free:
        places = zip(wanted.places, free, strict=True)
        wanted = Layout(tuple(layout.Placed(p.task, p.host, p.port or port) for p, port in places))
    return wanted.cluster(port, address=lambda host: "127.0.0.1")


def _processes(argv: Sequence[str], wanted: Layout, cluster: Cluster, shared: Mapping[str, str]) -> list[Process]:
    return [
        Process(
            str(task),
            argv,
            {**shared, "TF_CONFIG": cluster.at(task).to_tf_config()},
            serves=wanted.serves(task),
            replaceable=wanted.serves(task) and task.job == "worker",
        )
        for task in wanted.tasks
    ]


def _threads(threads: int | None, wanted: Layout) -> dict[str, str]:
    """So many processes on these cores, each with as many threads as there are cores, would wait for one another."""
    if threads is None:
        peers = wanted.count("worker") + (wanted.count("chief") if not wanted.count("ps") else 0)
        threads = max(1, len(os.sched_getaffinity(0)) // max(1, peers))
    if threads < 0:
        raise UsageError(f"threads is {threads}; it must be 1 or more, or 0 to leave it to TensorFlow")
    return {name: str(threads) for name in THREADS if threads and name not in os.environ}


def _preload() -> tuple[str, ...]:
    loop = ("tf2dist.loop",) if importlib.util.find_spec("tf2dist.loop") else ()
    return ("tensorflow", "keras", *loop)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `python -m launch local`."""
    layout.add_arguments(parser)
    process.add_arguments(parser)
    parser.add_argument(
        "--threads", type=int, metavar="N", help="of one operation of one task (default: cores / workers; 0: all)"
    )
    parser.add_argument(
        "--isolate", action="store_true", help="a network of its own for the job, which nobody else reaches"
    )
    parser.add_argument("--preload", help=argparse.SUPPRESS)  # comma-separated modules


def start(options: argparse.Namespace, program: Sequence[str]) -> int:
    """Runs the job that the command line asks for; see `run`."""
    wanted = layout.read(options)
    if elsewhere := [host for host in wanted.hosts if host not in _LOOPBACK]:
        raise UsageError(
            f"the tasks run on this machine, localhost, and not on {elsewhere[0]}; `launch ssh` goes there"
        )
    env = layout.environment(options)
    if options.dry_run:
        argv = ("python", *as_python_runs(program))
        for place in _processes(argv, wanted, _cluster(wanted, options.port), env | _threads(options.threads, wanted)):
            print(f"[{place.name}] {HERE}: {layout.shown(os.getcwd(), dict(place.env), argv)}")
        return 0
    preload = None if options.preload is None else tuple(filter(None, options.preload.split(",")))
    settings = process.settings(options) | {"isolate": options.isolate}
    return _run(program, wanted, options.port, env, preload, options.threads, settings)
