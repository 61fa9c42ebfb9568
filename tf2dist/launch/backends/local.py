"""Runs a cluster of processes on this machine, one for each task."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tf2dist.cluster.loss_policy import LOST_ANOTHER
from tf2dist.cluster.spec import Cluster
from tf2dist.errors import UsageError
from tf2dist.launch import cluster_layout, fault_plan, free_ports, gpu_sharing, network_namespace, supervisor
from tf2dist.launch.backend import Backend
from tf2dist.launch.cluster_layout import LOCALHOST, Layout, PlacedTask
from tf2dist.launch.gpu_sharing import GpuSharing, share_gpus
from tf2dist.launch.process import Process
from tf2dist.launch.process_group_settings import Settings
from tf2dist.launch.supervisor import supervise
from tf2dist.launch.threads_per_operation import thread_variables
from tf2dist.launch.user_program import python_arguments
from tf2dist.system import linux
from tf2dist.system.environment_variables import JOB_ID, LAUNCHED_AT, LOSS_STATUS, PREEMPTIBLE

_LOOPBACK = (LOCALHOST, "127.0.0.1")
_PRELOAD = ("tensorflow", "keras", "tf2dist.training.api")


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
    gpus_per_worker: int | None = None,
    gpu_memory: int | None = None,
    **settings: Any,
) -> int:
    """Runs `program` once for each task of a new cluster on loopback ports; returns the exit status of the job.

    Every process gets its task as TF_CONFIG, and TF2DIST_JOB_ID; and TF2DIST_LAUNCHED_AT and TF2DIST_PREEMPTIBLE,
    unless they are set already.

    Args:
      program: module or script, and its arguments.
      ps, workers, chief, evaluator: see `cluster_layout.place_tasks`.
      env: added to the environment of every process.
      preload: modules that are imported once for all; None for TensorFlow, Keras and this library.
      threads: that one operation of one process may use; None for an equal part of the cores for each worker, 0 to
        leave it to TensorFlow.
      gpus_per_worker, gpu_memory: see `gpu_sharing.share_gpus`.
      **settings: see `settings.Settings`. Where the system refuses to isolate, that is printed, and the job runs.

    Raises:
      UsageError: a number is out of its range, there is no such program, or a GPU is asked for that is not there.
    """
    layout = cluster_layout.place_tasks(ps, workers, chief, evaluator)
    sharing = share_gpus(layout, {**os.environ, **(env or {})}, each=gpus_per_worker, memory_mib=gpu_memory)
    return _run(program, layout, None, env or {}, preload, threads, sharing, settings)


class LocalBackend:
    """`python -m launch local`."""

    summary = "Runs a cluster of processes on this machine, one for each task."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        cluster_layout.add_arguments(parser)
        supervisor.add_arguments(parser)
        parser.add_argument(
            "--threads", type=int, metavar="N", help="of one operation of one task (default: cores / workers; 0: all)"
        )
        parser.add_argument(
            "--isolate", action="store_true", help="a network of its own for the job, which nobody else reaches"
        )
        parser.add_argument("--preload", help=argparse.SUPPRESS)  # comma-separated modules
        gpu_sharing.add_arguments(parser)
        fault_plan.add_arguments(parser)

    def start(self, options: argparse.Namespace, program: Sequence[str]) -> int:
        """Runs the job to its end; returns its exit status.

        Raises:
          UsageError: the options are wrong, or there is no such program.
        """
        layout = cluster_layout.from_options(options)
        if elsewhere := [host for host in layout.hosts if host not in _LOOPBACK]:
            raise UsageError(
                f"the tasks run on this machine, localhost, and not on {elsewhere[0]}; `launch ssh` goes there"
            )
        faults = fault_plan.from_options(options, [str(task) for task in layout.tasks])
        env = cluster_layout.task_environment(options)
        inherited = {**os.environ, **env}
        sharing = share_gpus(layout, inherited, each=options.gpus_per_worker, memory_mib=options.gpu_memory)
        if options.dry_run:
            argv = ("python", *python_arguments(program))
            env |= thread_variables(options.threads, layout)
            for process in _processes(argv, layout, _cluster(layout, options.port), env, sharing):
                command = cluster_layout.as_shell_command(os.getcwd(), process.env, argv)
                print(f"[{process.name}] {LOCALHOST}: {command}")
            if sharing.note:
                print(f"launch: {sharing.note}", file=sys.stderr)
            return 0
        modules: str | None = options.preload
        preload = None if modules is None else tuple(filter(None, modules.split(",")))
        settings = supervisor.settings_of(options, layout) | {"isolate": options.isolate, "faults": faults}
        return _run(program, layout, options.port, env, preload, options.threads, sharing, settings)


BACKEND: Backend = LocalBackend()


def _run(
    program: Sequence[str],
    layout: Layout,
    port: int | None,
    env: Mapping[str, str],
    preload: Sequence[str] | None,
    threads: int | None,
    sharing: GpuSharing,
    settings: dict[str, Any],
) -> int:
    Settings(**settings)
    argv = python_arguments(program)
    if settings.get("isolate") and (why := network_namespace.refusal()):
        print(
            f"launch: no private network here ({why.lower()}): other machines can reach the job's ports",
            file=sys.stderr,
        )
        settings["isolate"] = False
    if sharing.note:
        print(f"launch: {sharing.note}", file=sys.stderr)
    shared = {
        LAUNCHED_AT: os.environ.get(LAUNCHED_AT) or f"{linux.began():.2f}",
        PREEMPTIBLE: os.environ.get(PREEMPTIBLE) or "1",
        **env,
        JOB_ID: uuid.uuid4().hex,
        LOSS_STATUS: str(LOST_ANOTHER),
    }
    # In a network of its own nobody else takes a port.
    fixed = port or settings.get("isolate")
    with contextlib.nullcontext() if fixed else free_ports.hold(len(layout.placed)) as free:
        left = layout

        def processes() -> list[Process]:
            env = thread_variables(threads, left) | shared
            return _processes(argv, left, _cluster(left, port, free), env, sharing)

        def next_attempt(killed: str) -> list[Process]:
            nonlocal left
            lost = [place for place in left.placed if str(place.task) == killed]
            if lost and (fewer := left.without(lost)) is not None:
                left = fewer
                workers = f"{left.count('worker')} of {layout.count('worker')} workers"
                supervisor.say(f"{killed} was killed; the job goes on with {workers}")
            return processes()

        return supervise(
            processes(),
            next_attempt=None if layout.fewest_workers is None else next_attempt,
            preload=_PRELOAD if preload is None else preload,
            loss_summary=layout.loss_summary,
            **settings,
        ).status


def _cluster(layout: Layout, port: int | None, free: Sequence[int] | None = None) -> Cluster:
    """The cluster on 127.0.0.1; tasks without a port of their own get one of `free` in turn, or follow `port`."""
    if free:
        placed = zip(layout.placed, free, strict=False)  # fewer where workers were lost
        layout = Layout(tuple(PlacedTask(p.task, p.host, p.port or number) for p, number in placed))
    return layout.cluster(port, address=lambda host: "127.0.0.1")


def _processes(
    argv: Sequence[str], layout: Layout, cluster: Cluster, shared: Mapping[str, str], sharing: GpuSharing
) -> list[Process]:
    return [
        Process(
            str(task),
            argv,
            {**shared, **sharing.variables[str(task)], "TF_CONFIG": cluster.at(task).to_tf_config()},
            serves=layout.serves(task),
            coordinator=str(coordinator) if (coordinator := layout.coordinator_of(task)) else None,
        )
        for task in layout.tasks
    ]
