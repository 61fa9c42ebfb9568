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
from tf2dist.errors import UsageError
from tf2dist.launch import (
    cluster_layout,
    emulated_network,
    fault_plan,
    free_ports,
    gpu_sharing,
    network_namespace,
    supervisor,
)
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
    data_workers: int = 0,
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
      ps, workers, chief, evaluator, data_workers: see `cluster_layout.place_tasks`.
      env: added to the environment of every process.
      preload: modules that are imported once for all; None for TensorFlow, Keras and this library.
      threads: that one operation of one process may use; None for an equal part of the cores for each worker, 0 to
        leave it to TensorFlow.
      gpus_per_worker, gpu_memory: see `gpu_sharing.share_gpus`.
      **settings: see `settings.Settings`. Where the system refuses to isolate, that is printed, and the job runs.

    Raises:
      UsageError: a number is out of its range, there is no such program, a GPU is asked for that is not there, or the
        system refuses a network of hosts.
    """
    layout = cluster_layout.place_tasks(ps, workers, chief, evaluator, data_workers=data_workers)
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
        parser.add_argument(
            "--link",
            metavar="QDISC",
            help="the same, in which each task is a host behind a link as tc(8) makes it: 'netem delay 1ms rate 1gbit'",
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
        if options.link is not None and (why := emulated_network.check_link(options.link)):
            raise UsageError(f"--link: {why}")
        if options.dry_run:
            argv = ("python", *python_arguments(program))
            env |= thread_variables(options.threads, layout)
            addresses = _addresses(layout, apart=options.link is not None or bool(faults and faults.needs_hosts))
            found = _processes(argv, addresses, options.port, env, sharing)
            for process in found:
                command = cluster_layout.as_shell_command(os.getcwd(), process.env, argv)
                print(f"[{process.name}] {LOCALHOST}: {command}")
            if sharing.note:
                print(f"launch: {sharing.note}", file=sys.stderr)
            if any(process.address for process in found):
                print(
                    "launch: these addresses are those of hosts that a run makes, with --link or to cut",
                    file=sys.stderr,
                )
            return 0
        modules: str | None = options.preload
        preload = None if modules is None else tuple(filter(None, modules.split(",")))
        settings = supervisor.settings_of(options, layout)
        settings |= {"isolate": options.isolate, "link": options.link, "faults": faults}
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
    wanted = Settings(**settings)
    argv = python_arguments(program)
    if wanted.link is not None or (wanted.faults and wanted.faults.needs_hosts):
        settings |= {"isolate": True, "link": wanted.link or ""}
        if len(layout.tasks) > emulated_network.MOST_HOSTS:
            raise UsageError(f"a network has room for {emulated_network.MOST_HOSTS} tasks, found {len(layout.tasks)}")
        if why := emulated_network.refusal():
            asked = f"--link={wanted.link!r}" if wanted.link else "--chaos: a task that is cut off"
            raise UsageError(f"{asked} needs a network in which each task is a host, and there can be none here: {why}")
        if wanted.link and (why := emulated_network.refusal(wanted.link)):
            raise UsageError(f"--link={wanted.link!r}: there is no such link here: {why}")
    elif wanted.isolate and (why := network_namespace.refusal()):
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
            addresses = _addresses(left, free, apart=settings.get("link") is not None)
            return _processes(argv, addresses, port, env, sharing)

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


def _addresses(layout: Layout, free: Sequence[int] | None = None, *, apart: bool) -> Layout:
    """The same tasks on 127.0.0.1, or, where they are apart, each on a host of its own.

    Tasks without a port of their own get one of `free` in turn.
    """
    ports = free or [None] * len(layout.placed)  # more than tasks where workers were lost
    return Layout(
        tuple(
            PlacedTask(place.task, emulated_network.address(n) if apart else "127.0.0.1", place.port or port)
            for n, (place, port) in enumerate(zip(layout.placed, ports, strict=False))
        )
    )


def _processes(
    argv: Sequence[str],
    layout: Layout,
    port: int | None,
    shared: Mapping[str, str],
    sharing: GpuSharing,
) -> list[Process]:
    """The tasks at their addresses; those without a port follow `port`."""
    cluster = layout.cluster(port)
    return [
        Process(
            str(place.task),
            argv,
            {**shared, **sharing.variables[str(place.task)], "TF_CONFIG": cluster.at(place.task).to_tf_config()},
            serves=layout.serves(place.task),
            coordinator=str(coordinator) if (coordinator := layout.coordinator_of(place.task)) else None,
            is_needed=layout.coordinator_needs(place.task),
            address=None if place.host in _LOOPBACK else place.host,
        )
        for place in layout.placed
    ]
