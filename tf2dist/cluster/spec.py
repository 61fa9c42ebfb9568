"""Which tasks make up a job, where each listens, and which one this process is. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

from tf2dist.errors import UsageError, printable

JOBS = ("chief", "worker", "ps", "evaluator", "data_worker")
_APART = ("evaluator", "data_worker")  # of whom TensorFlow's cluster must not know
MOST_TASKS = 65_535  # of a job that a few characters can ask for; a host has as many ports

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]\x00-\x1f]+):([0-9]{1,5})")


class ClusterError(UsageError):
    """A cluster description that cannot be right; in one line: what, what was found, what would do."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


@dataclass(frozen=True, order=True)
class Task:
    """One process of a job, as `worker 0` or `ps 1`."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job} {self.index}"


@dataclass(frozen=True)
class Cluster:
    """The tasks of one job and the place of this process among them.

    Args:
      jobs: job name to addresses "host:port" in the order of their indices. An evaluator is not a member of the
        cluster that TensorFlow sees (tensorflow#46169), nor is a data worker; they may be named here and are left out
        by `spec`.
      task: this process.
      job_id: what this job is called, by which its tasks know those of another one at the same addresses; empty if it
        has no name. It is no part of the description: clusters are equal without it.

    Raises:
      ClusterError: when the description cannot be right.
    """

    jobs: Mapping[str, tuple[str, ...]]
    task: Task
    job_id: str = dataclasses.field(default="", compare=False)

    any_jobs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        given = cast(object, self.jobs)  # a user's JSON may hold anything
        if not isinstance(given, Mapping) or not given:
            raise ClusterError(f"the cluster has no jobs, found {given!r}; it needs a worker")
        jobs = cast("Mapping[object, object]", given)
        for job, found in jobs.items():
            self._check_name(job, found)
        object.__setattr__(self, "jobs", {job: _addresses(job, found) for job, found in jobs.items()})
        if len(self.jobs.get("chief", ())) > 1:
            raise ClusterError(
                f"the cluster names {len(self.jobs['chief'])} chiefs, {', '.join(self.jobs['chief'])}; one is right"
            )
        seen: dict[tuple[str, int], Task] = {}
        for task in self.tasks:
            address = self.address(task)
            place = (address.rpartition(":")[0].lower(), self.port(task))
            if place in seen:
                raise ClusterError(
                    f"address {address} is given to {seen[place]} and to {task}; each task needs its own"
                )
            seen[place] = task
        if not (self.any_jobs or self.jobs.get("worker") or self.jobs.get("chief")):
            raise ClusterError(f"the cluster has no worker, found only {', '.join(self.jobs)}; it needs at least one")
        if self.task.job == "evaluator":
            return
        if not self.count(self.task.job):
            found = ", ".join(job for job, addresses in self.jobs.items() if addresses)
            raise ClusterError(f"this task is {self.task}, but the cluster's jobs are {found}")
        if not 0 <= self.task.index < len(self.jobs[self.task.job]):
            raise ClusterError(
                f"this task is {self.task}, but the cluster has {len(self.jobs[self.task.job])} of job "
                f"{self.task.job}: the index goes from 0 to {len(self.jobs[self.task.job]) - 1}"
            )

    def _check_name(self, job: object, found: object) -> None:
        if self.any_jobs and (not isinstance(job, str) or job in _APART or not _NAME.fullmatch(job)):
            raise ClusterError(f"a job cannot be called {job!r}; a name has letters, digits and _, as local_1")
        if not self.any_jobs and job not in JOBS:
            raise ClusterError(f"unknown job {job!r} in the cluster, found {found!r}; jobs are {', '.join(JOBS)}")

    @property
    def tasks(self) -> list[Task]:
        """Every task of the cluster, job by job."""
        return [Task(job, index) for job, addresses in self.jobs.items() for index in range(len(addresses))]

    @property
    def spec(self) -> dict[str, list[str]]:
        """The jobs that TensorFlow connects to each other, as `tf.train.ClusterSpec` takes them."""
        return {job: addresses for job, addresses in self.described.items() if job not in _APART}

    @property
    def described(self) -> dict[str, list[str]]:
        """The jobs whose tasks find each other: those of `spec`, and data workers. TF_CONFIG has them."""
        return {job: list(addresses) for job, addresses in self.jobs.items() if addresses and job != "evaluator"}

    def count(self, job: str) -> int:
        """How many tasks the job has."""
        return len(self.jobs.get(job, ()))

    def address(self, task: Task | None = None) -> str:
        """The "host:port" of a task, this process's own without an argument."""
        task = task or self.task
        return self.jobs[task.job][task.index]

    def port(self, task: Task | None = None) -> int:
        """The port of a task, this process's own without an argument."""
        return int(self.address(task).rpartition(":")[2])

    @property
    def most_tasks_on_a_host(self) -> int:
        """The most tasks that share a host."""
        hosts = Counter(self.address(task).rpartition(":")[0].lower() for task in self.tasks)
        return max(hosts.values())

    def at(self, task: Task) -> Cluster:
        """The same cluster seen from another task."""
        return dataclasses.replace(self, task=task)

    def to_tf_config(self) -> str:
        """The JSON that TensorFlow reads from the environment variable TF_CONFIG."""
        task = {"type": self.task.job, "index": self.task.index}
        return json.dumps({"cluster": self.described, "task": task})

    @classmethod
    def from_tf_config(cls, text: str) -> Cluster:
        """Reads the JSON of TF_CONFIG.

        Raises:
          ClusterError: when it is not JSON, lacks "cluster" or "task", or describes a cluster that cannot be.
        """
        try:
            found: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ClusterError(f"TF_CONFIG is not JSON: {error}; found {_short(text)}") from None
        description = cast("dict[str, object]", found) if isinstance(found, dict) else {}
        cluster, task = description.get("cluster"), description.get("task")
        if not isinstance(cluster, dict):
            raise ClusterError(f'TF_CONFIG has no "cluster" object, found {_short(text)}')
        if not isinstance(task, dict) or "type" not in task or "index" not in task:
            raise ClusterError(
                'TF_CONFIG does not say which task this is: it needs "task": {"type": JOB, "index": N}, '
                f"found {_short(json.dumps(task))}"
            )
        task = cast("dict[str, object]", task)
        index = task["index"]
        if isinstance(index, str) and index.isdecimal() and len(index) < 10:  # some platforms write the index as text
            index = int(index)
        if not isinstance(index, int) or isinstance(index, bool):
            raise ClusterError(f"TF_CONFIG's task index must be a whole number, found {_short(repr(index))}")
        return cls(cast("dict[str, tuple[str, ...]]", cluster), Task(str(task["type"]), index))  # checks the jobs


class AnyJobs(Cluster):
    """A cluster whose jobs may have any names, for programs that say themselves which task does what: no strategy."""

    any_jobs = True


def _addresses(job: object, found: object) -> tuple[str, ...]:
    if not isinstance(found, (list, tuple)):
        raise ClusterError(f'job {job} must be a list of "host:port", found {found!r}')
    addresses: list[str] = []
    for address in cast("list[object] | tuple[object, ...]", found):
        if not isinstance(address, str) or not _is_address(address):
            raise ClusterError(f'job {job} has the address {address!r}; an address is "host:port", as "10.0.0.1:2222"')
        addresses.append(address)
    return tuple(addresses)


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and text.isprintable() and 0 < int(match[2]) < 65536 and _is_host(match[1])


def _is_host(name: str) -> bool:
    """Can it be looked up at all? A part of a name is neither empty nor longer than 63 characters."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def one_line(text: str) -> str:
    """Text from elsewhere as one line of characters that can be shown, also on a terminal."""
    return printable(" ".join(text.split()))


def _short(text: str, limit: int = 80) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
