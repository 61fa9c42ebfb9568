"""Decides which tasks a job has, on which hosts and ports, from the options that all backends share."""

from __future__ import annotations

import argparse
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tf2dist.cluster.loss_policy import OnLoss, on_loss, summary
from tf2dist.cluster.roles import leader_among
from tf2dist.cluster.spec import MOST_TASKS, Cluster, ClusterError, Task
from tf2dist.errors import UsageError
from tf2dist.launch import hostfile
from tf2dist.system import environment_variables

LOCALHOST = "localhost"
DEFAULT_PORT = 2222  # of the first task on a host, as in TensorFlow's own examples


@dataclass(frozen=True)
class PlacedTask:
    """A task, the host that it runs on, and its port; None where the backend chooses one."""

    task: Task
    host: str
    port: int | None = None


class WorkerNumbers(NamedTuple):
    """`--workers=N`, or `--workers=MIN:MAX`.

    Attributes:
      most: of workers.
      fewest: that the job may begin with under parameter servers, and else go on with when others are lost; None if
        it needs all.
    """

    most: int
    fewest: int | None = None


@dataclass(frozen=True)
class Layout:
    """The tasks of a job in the order in which they are started, each on its host.

    Attributes:
      placed: the tasks.
      fewest_workers: with which a job of peers may go on when others are lost; None if it may not go on with fewer.
    """

    placed: tuple[PlacedTask, ...]
    fewest_workers: int | None = None

    @property
    def tasks(self) -> list[Task]:
        """The tasks in the order in which they are started."""
        return [place.task for place in self.placed]

    @property
    def leader(self) -> Task:
        """The task that leads the job."""
        return leader_among(self.tasks)

    @property
    def hosts(self) -> list[str]:
        """The hosts, each once, in the order of their first tasks."""
        return list(dict.fromkeys(place.host for place in self.placed))

    @property
    def cluster_members(self) -> list[PlacedTask]:
        """The tasks that TensorFlow connects to each other: all but the evaluator."""
        return [place for place in self.placed if place.task.job != "evaluator"]

    def count(self, job: str) -> int:
        """How many tasks a job has."""
        return sum(task.job == job for task in self.tasks)

    def computes(self, job: str) -> bool:
        """Do the tasks of this job compute steps? Workers, and a chief where there are no parameter servers to lead."""
        return job == "worker" or (job == "chief" and not self.count("ps"))

    def serves(self, task: Task) -> bool:
        """Does the task serve another one? Data workers do, and with parameter servers all but the leader."""
        if task.job == "data_worker":
            return True
        return self.count("ps") > 0 and task.job != "evaluator" and task != self.leader

    def coordinator_of(self, task: Task) -> Task | None:
        """The task that goes on when this one is lost, and is started again; None if its loss ends the job."""
        return None if self._on_loss(task) is OnLoss.END else self.leader

    def coordinator_needs(self, task: Task) -> bool:
        """Does the coordinator of this task wait for another in its place when it is lost?"""
        return self._on_loss(task) in (OnLoss.RESTORE, OnLoss.AWAIT)

    def _on_loss(self, task: Task) -> OnLoss:
        return on_loss(task, leader=self.leader, has_servers=self.count("ps") > 0)

    def without(self, lost: Collection[PlacedTask]) -> Layout | None:
        """The layout of a job that goes on without these tasks; its workers are numbered anew.

        None if it cannot: a task is no worker, or fewer workers would be left than `fewest_workers`.
        """
        kept = [place for place in self.placed if place not in lost]
        workers = sum(place.task.job == "worker" for place in kept)
        if any(place.task.job != "worker" for place in lost) or workers < (self.fewest_workers or self.count("worker")):
            return None
        numbers = iter(range(workers))
        return replace(
            self,
            placed=tuple(
                replace(place, task=Task("worker", next(numbers))) if place.task.job == "worker" else place
                for place in kept
            ),
        )

    def check_fixed(self, backend: str) -> None:
        """Raises UsageError if the job may go on with fewer workers, which this backend cannot have it do."""
        if self.fewest_workers is not None:
            raise UsageError(
                f"--workers={self.fewest_workers}:{self.count('worker')}: {backend} cannot start a job again with "
                "fewer workers, `launch local` and `launch ssh` can; give one number"
            )

    def check_data_workers(self) -> None:
        """Raises UsageError if there are data workers, and no single process that could read from them."""
        if self.count("data_worker") and not self.count("ps") and self.count("worker") + self.count("chief") > 1:
            raise UsageError(
                f"data workers are for a job with parameter servers or with one worker, found "
                f"{self.count('worker') + self.count('chief')} peers, which would get other elements each; give --ps, "
                "or read in each peer"
            )

    @property
    def loss_summary(self) -> str:
        """What the loss of each kind of task means, in one line."""
        return summary(self.tasks, leader=self.leader, has_servers=self.count("ps") > 0)

    def cluster(self, port: int | None = None, address: Callable[[str], str] = str) -> Cluster:
        """The cluster, seen from its first task.

        Args:
          port: of the first task on each host, where the layout has none; the next one there has the next port.
          address: what the other hosts call a host.

        Raises:
          UsageError: two tasks have the same address, or a port is out of range.
        """
        jobs: dict[str, list[str]] = {}
        used: dict[str, int] = {}
        for place in self.cluster_members:
            at = address(place.host)
            number = place.port
            if number is None:
                number, used[at] = (port or DEFAULT_PORT) + used.get(at, 0), used.get(at, 0) + 1
            jobs.setdefault(place.task.job, []).append(f"{at}:{number}")
        try:
            return Cluster({job: tuple(found) for job, found in jobs.items()}, self.cluster_members[0].task)
        except ClusterError as error:
            raise UsageError(str(error)) from None


def place_tasks(
    ps: int | None = None,
    workers: int | None = None,
    chief: bool | None = None,
    evaluator: bool = False,
    hosts: Sequence[tuple[str, int]] = (),
    data_workers: int | None = None,
) -> Layout:
    """Places so many tasks on hosts.

    Workers take the slots of the hosts in order. The others need no slot: chief and evaluator are on the first host,
    and parameter servers and data workers go round, one a host.

    Args:
      ps: parameter servers; 0 if not given.
      workers: one a slot if not given; 1 without hosts.
      chief: is there a chief? None: if there are parameter servers; it coordinates them.
      evaluator: is there a task that evaluates the checkpoints of the others?
      hosts: name and number of slots of each; without, everything is on this machine.
      data_workers: tasks that make elements of data; 0 if not given.

    Raises:
      UsageError: a number is out of its range, or there are more workers than slots.
    """
    ps, data_workers = ps or 0, data_workers or 0
    numbers = {"parameter servers": ps, "workers": workers or 0, "data workers": data_workers}
    for what, number in (numbers | {"slots": sum(n for _, n in hosts)}).items():
        if number > MOST_TASKS:
            raise UsageError(f"the number of {what} is {number}; it must be {MOST_TASKS} or less")
    if data_workers < 0:
        raise UsageError(f"the number of data workers is {data_workers}; it must be 0 or more")
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
    names = [name for name, _ in hosts] or [LOCALHOST]
    slots = slots or [LOCALHOST] * workers
    chief = ps > 0 if chief is None else chief
    placed = [PlacedTask(Task("chief", 0), names[0])] if chief else []
    placed += [PlacedTask(Task("worker", index), slots[index]) for index in range(workers)]
    placed += [PlacedTask(Task("ps", index), names[index % len(names)]) for index in range(ps)]
    placed += [PlacedTask(Task("data_worker", index), names[index % len(names)]) for index in range(data_workers)]
    placed += [PlacedTask(Task("evaluator", 0), names[0])] if evaluator else []
    layout = Layout(tuple(placed))
    layout.check_data_workers()
    return layout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of all backends."""
    group = parser.add_argument_group("the cluster")
    group.add_argument("--ps", type=int, metavar="N", help="parameter servers (default: 0)")
    group.add_argument(
        "--workers",
        type=_worker_numbers,
        metavar="N",
        help="workers (default: one a slot, 1 without hosts); MIN:MAX: with parameter servers the job begins when "
        "MIN are there, and the others join it when they come; without (local and ssh), it may go on with fewer of "
        "them from its last checkpoint when others are lost",
    )
    group.add_argument(
        "--chief",
        action=argparse.BooleanOptionalAction,
        help="a chief, which coordinates (default: if there are parameter servers)",
    )
    group.add_argument("--evaluator", action="store_true", help="a task that evaluates the checkpoints of the others")
    group.add_argument(
        "--data_workers",
        type=int,
        metavar="N",
        help="tasks that make elements of data for a tf2dist.DataService (default: 0); with --ps, or with one worker",
    )
    group.add_argument(
        "--hosts",
        metavar="A,B:2",
        help="hosts, with the number of slots for workers if it is not 1; chief and evaluator are on the first, "
        "parameter servers and data workers go round",
    )
    group.add_argument("--hostfile", metavar="FILE", help="the same, one a line: 'A', 'B:2' or 'B slots=2'")
    group.add_argument("--cluster", metavar="FILE", help='TOML: worker = ["a", "b:2222"], ps = ["c"], ...')
    group.add_argument(
        "--port",
        type=int,
        metavar="N",
        help=f"of a host's first task (default: {DEFAULT_PORT}; local: free ones; slurm: from the step's numbers)",
    )
    group = parser.add_argument_group("the job")
    group.add_argument("--dry_run", action="store_true", help="print what would be run, and run nothing")
    group.add_argument(
        "--start_timeout",
        type=float,
        metavar="S",
        help="seconds that a task waits for the others (default: 120; k8s: 900)",
    )
    group.add_argument(
        "--stall_timeout",
        type=float,
        metavar="S",
        help="seconds without a step after which the job fails, and says for whom it waited (default: 0, never)",
    )


def from_options(options: argparse.Namespace) -> Layout:
    """Returns the layout that the options describe.

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
    if options.stall_timeout is not None and not 0 <= options.stall_timeout < float("inf"):
        raise UsageError(f"--stall_timeout={options.stall_timeout:g} must be a number of seconds, or 0 for never")
    if ways == ["cluster"]:
        for name in ("ps", "workers", "chief", "evaluator", "data_workers"):
            if getattr(options, name) not in (None, False):
                raise UsageError(f"--{name} and --cluster={options.cluster} both say the tasks; give one of them")
        jobs = hostfile.read_cluster_file(options.cluster)
        placed = [PlacedTask(Task(job, i), *at) for job, found in jobs.items() for i, at in enumerate(found)]
        layout = Layout(tuple(placed))
        layout.check_data_workers()
        return layout
    found = []
    if options.hosts is not None:
        found = hostfile.parse_hosts(options.hosts)
    elif options.hostfile is not None:
        found = hostfile.read_hostfile(options.hostfile)
    for name, times in Counter(name for name, _ in found).items():
        if times > 1:
            raise UsageError(f"host {name} is named {times} times; several slots are {name}:N")
    numbers: WorkerNumbers | None = options.workers
    layout = place_tasks(
        options.ps, numbers and numbers.most, options.chief, options.evaluator, found, options.data_workers
    )
    if numbers is None or layout.count("ps"):  # it goes on without lost workers anyway
        return layout
    return replace(layout, fewest_workers=numbers.fewest)


def _worker_numbers(text: str) -> WorkerNumbers:
    """Reads `--workers`."""
    fewest, colon, most = text.rpartition(":")
    try:
        numbers = WorkerNumbers(int(most), int(fewest) if colon else None)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of workers nor MIN:MAX") from None
    if numbers.fewest is not None and not 1 <= numbers.fewest <= numbers.most:
        raise argparse.ArgumentTypeError(f"of {text} the first number must be from 1 to the second one")
    return numbers


def task_environment(options: argparse.Namespace, start_timeout: float | None = None) -> dict[str, str]:
    """Environment variables that the options set for every task; `start_timeout` is the backend's default."""
    seconds = start_timeout if options.start_timeout is None else options.start_timeout
    fewest = options.workers.fewest if options.workers and options.ps else None
    given = {
        environment_variables.START_TIMEOUT: seconds,
        environment_variables.STALL_TIMEOUT: options.stall_timeout,
        environment_variables.MIN_WORKERS: fewest,
    }
    return {name: f"{value:.12g}" for name, value in given.items() if value is not None}


def as_shell_command(directory: str, env: Mapping[str, str], argv: Sequence[str]) -> str:
    """Returns a command as one would type it, for --dry_run."""
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    return f"cd {shlex.quote(os.path.abspath(directory))} && {variables} {shlex.join(argv)}"
