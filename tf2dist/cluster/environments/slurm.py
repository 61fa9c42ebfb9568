"""Slurm: the variables that srun gives to each task of a step.

TensorFlow's own SlurmClusterResolver calls `nvidia-smi`, and fails on nodes without GPUs. This one calls nothing: a
task's number is its place in the job, each node comes with its number of tasks, and ports are counted from one that
follows from the ids of job and step, so that those that share a node use different ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tf2dist.cluster.spec import JOBS, MOST_TASKS, Cluster, ClusterError, Task
from tf2dist.system.environment_variables import SLURM_PORT, SLURM_TASKS
from tf2dist.system.whole_numbers import whole_number

_APART = 64  # ports between those of two jobs
_STEPS_APART = 89  # a step has the ports of the job so many numbers on: none that is likely to run beside it
_JOB, _STEP = "SLURM_JOB_ID", "SLURM_STEP_ID"
# So many that two jobs never overlap; below those that Linux gives to outgoing connections (32768).
_LOWEST, _PORTS = 15000, 234 * _APART
_LONGEST_NAME = 253  # characters of a host's, by RFC 1035


class Slurm:
    """A step of several tasks: each is a worker, unless TF2DIST_TASKS says otherwise."""

    variable = "SLURM_STEP_NODELIST"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.notes: list[str] = []
        self._environ = environ

    def detect(self) -> bool:
        """As `Environment.detect`; a step of a single task is no cluster."""
        return bool(self._environ.get(self.variable)) and self._environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"

    def cluster(self) -> Cluster:
        """As `Environment.cluster`."""
        environ = self._environ
        count, this = _number(environ, "SLURM_STEP_NUM_TASKS"), _number(environ, "SLURM_PROCID")
        nodes = hosts_of(environ["SLURM_STEP_NODELIST"])
        each = counts_of(environ.get("SLURM_STEP_TASKS_PER_NODE") or f"1(x{count})")
        if len(nodes) != len(each) or sum(each) != count:
            raise ClusterError(
                f"Slurm names {len(nodes)} nodes ({environ['SLURM_STEP_NODELIST']}) for {len(each)} groups of tasks "
                f"({environ.get('SLURM_STEP_TASKS_PER_NODE')}), and {count} tasks in all"
            )
        first = _number(environ, SLURM_PORT) if environ.get(SLURM_PORT) else _first_port(environ)
        hosts = [node for node, number in zip(nodes, each, strict=True) for _ in range(number)]
        tasks = _tasks(environ.get(SLURM_TASKS) or f"worker:{count}")
        if len(tasks) != count:
            raise ClusterError(
                f"{SLURM_TASKS}={environ[SLURM_TASKS]} names {len(tasks)} tasks, and srun has started {count}"
            )
        if not this < count:
            raise ClusterError(f"SLURM_PROCID is {this}, and the step has {count} tasks")
        jobs: dict[str, list[str]] = {}
        for number, (task, host) in enumerate(zip(tasks, hosts, strict=True)):
            if task.job != "evaluator":
                jobs.setdefault(task.job, []).append(f"{host}:{first + number}")
        node = whole_number(environ.get("SLURM_NODEID", ""))
        if node is not None and node < len(nodes) and nodes[node] != hosts[this]:
            raise ClusterError(
                f"task {this} is on {nodes[node]}, and tasks are counted node by node, which makes that "
                f"{hosts[this]}; start them with srun --distribution=block"
            )
        return Cluster(
            {job: tuple(at) for job, at in jobs.items()},
            tasks[this],
            f"{environ.get(_JOB, '')}.{environ.get(_STEP, '')}",
        )


def hosts_of(text: str) -> list[str]:
    """Returns the names in a node list: "a[1-3,07],b" is a1, a2, a3, a07, b.

    Raises:
      ClusterError: it is no node list.
    """
    names: list[str] = []
    for part in _parts(text):
        names += _expanded(part, text, MOST_TASKS - len(names))
    return names


def counts_of(text: str) -> list[int]:
    """Returns the numbers in "2(x3),1": 2, 2, 2, 1.

    Raises:
      ClusterError: it is no list of counts.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part.strip())
        number, nodes = (whole_number(match[1]), whole_number(match[2] or "1")) if match else (None, None)
        if number is None or nodes is None:
            raise ClusterError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}; it is written as 2(x3),1")
        if len(counts) + nodes > MOST_TASKS:
            raise ClusterError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}, of more than {MOST_TASKS} nodes")
        counts += [number] * nodes
    return counts


def _parts(text: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text or not parts:
        raise ClusterError(f"the node list {text!r} cannot be read; it is written as a[1-3,7],b")
    return parts


def _expanded(part: str, text: str, most: int) -> list[str]:
    """Returns the names that one part of a node list means, at most so many."""
    names = [""]
    for place, piece in enumerate(re.split(r"\[([^\[\]]*)\]", part)):  # what is between brackets has odd places
        ends = [piece] if place % 2 == 0 else _numbers(piece, text, most)
        if len(names) * len(ends) > most:
            raise ClusterError(f"the node list {text!r} has more than {MOST_TASKS} nodes")
        if len(names[0]) + len(ends[0]) > _LONGEST_NAME:
            raise ClusterError(f"the node list {text!r} cannot be read; no name has over {_LONGEST_NAME} characters")
        names = [name + end for name in names for end in ends]
    return names


def _numbers(pieces: str, text: str, most: int) -> list[str]:
    """Returns the numbers in "1-3,07" as they are written: "1", "2", "3", "07"."""
    numbers: list[str] = []
    for piece in pieces.split(","):
        begin, dash, end = piece.partition("-")
        first, last = whole_number(begin), whole_number(end if dash else begin)
        if first is None or last is None or last < first:
            raise ClusterError(f"the node list {text!r} cannot be read; {piece!r} is no range")
        if len(numbers) + last - first >= most:
            raise ClusterError(f"the node list {text!r} has more than {MOST_TASKS} nodes")
        numbers += [f"{number:0{len(begin)}}" for number in range(first, last + 1)]
    return numbers


def _tasks(text: str) -> list[Task]:
    tasks: list[Task] = []
    for part in text.split(","):
        job, _, digits = part.partition(":")
        count = whole_number(digits)
        if job not in JOBS or count is None:
            raise ClusterError(f"{SLURM_TASKS} is {text!r}; it is written as chief:1,worker:2,ps:1")
        if len(tasks) + count > MOST_TASKS:
            raise ClusterError(f"{SLURM_TASKS} is {text!r}, of more than {MOST_TASKS} tasks")
        tasks += [Task(job, index) for index in range(count)]
    return tasks


def _first_port(environ: Mapping[str, str]) -> int:
    job, step = (whole_number(environ.get(name, "")) or 0 for name in (_JOB, _STEP))
    return _LOWEST + (job + _STEPS_APART * step) * _APART % _PORTS


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    number = whole_number(text)
    if number is None or number > MOST_TASKS:
        raise ClusterError(f"{name} is {text!r}; Slurm gives a number to each task of a step")
    return number
