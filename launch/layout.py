"""The one way to say a cluster, for all launchers: numbers of tasks, hosts, a host file, or cluster.toml."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launch import UsageError, hosts
from tf2dist.cluster import Cluster, ClusterError, Task

HERE = "localhost"
PORT = 2222  # of the first task on a host, as in TensorFlow's own examples
# How many threads one operation may use; the pools that run several operations at once are left as they are, because
# operations that wait for other processes wait in them.
THREADS = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Placed:
    """A task, the host it runs on, and the port it listens at; None where the launcher chooses one."""

    task: Task
    host: str
    port: int | None = None


@dataclass(frozen=True)
class Layout:
    """The tasks of a job in the order in which they are started, each on its host."""

    places: tuple[Placed, ...]

    @property
    def tasks(self) -> list[Task]:
        return [place.task for place in self.places]

    @property
    def hosts(self) -> list[str]:
        """The hosts, each once, in the order of their first tasks."""
        return list(dict.fromkeys(place.host for place in self.places))

    @property
    def members(self) -> list[Placed]:
        """Those that TensorFlow connects to each other, which an evaluator is not one of."""
        return [place for place in self.places if place.task.job != "evaluator"]

    def count(self, job: str) -> int:
        return sum(task.job == job for task in self.tasks)

    def serves(self, task: Task) -> bool:
        """With servers the first task coordinates, and the others serve; without, all are peers."""
        return self.count("ps") > 0 and task.job != "evaluator" and task != self.tasks[0]

    def cluster(self, port: int | None = None, address: Callable[[str], str] = str) -> Cluster:
        """The cluster, seen from its first task.

        Args:
          port: of the first task on each host, where the layout has none; the next one there has the next port.
          address: what the other hosts call a host.

        Raises:
          UsageError: two tasks have one address, or a port is none.
        """
        jobs: dict[str, tuple[str, ...]] = {}
        used: dict[str, int] = {}
        for place in self.members:
            at = address(place.host)
            number = place.port
            if number is None:
                number, used[at] = (port or PORT) + used.get(at, 0), used.get(at, 0) + 1
            jobs[place.task.job] = (*jobs.get(place.task.job, ()), f"{at}:{number}")
        try:
            return Cluster(jobs, self.members[0].task)
        except ClusterError as error:
            raise UsageError(str(error)) from None


def counted(
    ps: int | None = None,
    workers: int | None = None,
    chief: bool | None = None,
    evaluator: bool = False,
    hosts: Sequence[tuple[str, int]] = (),
) -> Layout:
    """The layout of so many tasks.

    Workers take the slots of the hosts in order. The others do little work and need no slot: chief and evaluator are
    on the first host, and parameter servers go round, one a host.

    Args:
      ps: parameter servers; 0 if not given.
      workers: one a slot if not given; 1 without hosts.
      chief: None: if there are parameter servers, and then it coordinates.
      evaluator: whether there is a task that evaluates the checkpoints of the others.
      hosts: name and number of slots of each; without, everything is on this machine.

    Raises:
      UsageError: a number is out of its range, or there are more workers than slots.
    """
    ps = ps or 0
    slots = [name for name, number in hosts for _ in range(number)]
    workers = (len(slots) or 1) if workers is None else workers
    if ps < 0:
        raise UsageError(f"the number of parameter servers is {ps}; it must be 0 or more")
    if workers < 1:
        raise UsageError(f"the number of workers is {workers}; it must be 1 or more")
    if hosts and workers > len(slots):
        raise UsageError(
            f"{workers} workers do not fit in the {len(slots)} slots of {', '.join(name for name, _ in hosts)}; "
            "more workers on a host are written host:N"
        )
    names = [name for name, _ in hosts] or [HERE]
    slots = slots or [HERE] * workers
    chief = ps > 0 if chief is None else chief
    places = [Placed(Task("chief", 0), names[0])] if chief else []
    places += [Placed(Task("worker", index), slots[index]) for index in range(workers)]
    places += [Placed(Task("ps", index), names[index % len(names)]) for index in range(ps)]
    places += [Placed(Task("evaluator", 0), names[0])] if evaluator else []
    return Layout(tuple(places))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options that say the cluster."""
    group = parser.add_argument_group("the cluster")
    group.add_argument("--ps", type=int, metavar="N", help="parameter servers (default: 0)")
    group.add_argument("--workers", type=int, metavar="N", help="workers (default: one a slot, 1 without hosts)")
    group.add_argument(
        "--chief",
        action=argparse.BooleanOptionalAction,
        help="a chief, which coordinates (default: if there are parameter servers)",
    )
    group.add_argument("--evaluator", action="store_true", help="a task that evaluates the checkpoints of the others")
    group.add_argument(
        "--hosts",
        metavar="A,B:2",
        help="hosts, with the number of slots for workers if it is not 1; chief and evaluator are on the first, "
        "parameter servers go round",
    )
    group.add_argument("--hostfile", metavar="FILE", help="the same, one a line: 'A', 'B:2' or 'B slots=2'")
    group.add_argument("--cluster", metavar="FILE", help='TOML: worker = ["a", "b:2222"], ps = ["c"], ...')
    group.add_argument(
        "--port", type=int, metavar="N", help=f"of a host's first task (default: {PORT}; local: free ones)"
    )
    group = parser.add_argument_group("the job")
    group.add_argument("--dry_run", action="store_true", help="print what would be run, and run nothing")
    group.add_argument(
        "--start_timeout",
        type=float,
        metavar="S",
        help="seconds that a task waits for the others (default: 120; k8s: 900)",
    )


def read(options: argparse.Namespace) -> Layout:
    """The layout that the options say.

    Raises:
      UsageError: they contradict each other, or one is out of its range.
    """
    ways = [name for name in ("hosts", "hostfile", "cluster") if getattr(options, name) is not None]
    if len(ways) > 1:
        raise UsageError(f"--{ways[0]} and --{ways[1]} both say the hosts; give one of them")
    if options.port is not None and not 0 < options.port < 65536:
        raise UsageError(f"--port={options.port} is no port; ports go from 1 to 65535")
    if options.start_timeout is not None and not 0 < options.start_timeout < float("inf"):
        raise UsageError(f"--start_timeout={options.start_timeout:g} must be a number of seconds above 0")
    if ways == ["cluster"]:
        for name in ("ps", "workers", "chief", "evaluator"):
            if getattr(options, name) not in (None, False):
                raise UsageError(f"--{name} and --cluster={options.cluster} both say the tasks; give one of them")
        jobs = hosts.by_job(options.cluster)
        return Layout(tuple(Placed(Task(job, i), *at) for job, found in jobs.items() for i, at in enumerate(found)))
    found = []
    if options.hosts is not None:
        found = hosts.listed(options.hosts)
    elif options.hostfile is not None:
        found = hosts.from_file(options.hostfile)
    names = [name for name, _ in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"host {twice[0]} is named {names.count(twice[0])} times; several slots are {twice[0]}:N")
    return counted(options.ps, options.workers, options.chief, options.evaluator, found)


def environment(options: argparse.Namespace, start_timeout: float | None = None) -> dict[str, str]:
    """What every task finds in its environment, whoever starts it; `start_timeout` is what holds if none is given."""
    seconds = start_timeout if options.start_timeout is None else options.start_timeout
    return {} if seconds is None else {"TF2DIST_START_TIMEOUT": f"{seconds:g}"}


def shown(directory: str, env: dict[str, str], argv: Sequence[str]) -> str:
    """A command as one would type it, for --dry_run."""
    import shlex

    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    return f"cd {shlex.quote(os.path.abspath(directory))} && {variables} {shlex.join(argv)}"
