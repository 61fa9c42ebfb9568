"""Slurm: the variables that srun gives to each task of a step.

TensorFlow's own SlurmClusterResolver calls `nvidia-smi`, and fails on nodes without GPUs. This one calls nothing: a
task's number is its place in the job, each node comes with its number of tasks, and ports are counted from one that
follows from the ids of job and step, so that those that share a node use different ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tf2dist.cluster.spec import JOBS, Cluster, ClusterError, Task
from tf2dist.system.environment_variables import SLURM_PORT, SLURM_TASKS

_APART = 64  # ports between those of two jobs
_STEPS_APART = 89  # a step has the ports of the job so many numbers on: none that is likely to run beside it
_JOB, _STEP = "SLURM_JOB_ID", "SLURM_STEP_ID"
# So many that two jobs never overlap; below those that Linux gives to outgoing connections (32768).
_LOWEST, _PORTS = 15000, 234 * _APART


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
        jobs: dict[str, tuple[str, ...]] = {}
        for number, (task, host) in enumerate(zip(tasks, hosts, strict=True)):
            if task.job != "evaluator":
                jobs[task.job] = (*jobs.get(task.job, ()), f"{host}:{first + number}")
        node = environ.get("SLURM_NODEID", "")
        if node.isdecimal() and int(node) < len(nodes) and nodes[int(node)] != hosts[this]:
            raise ClusterError(
                f"task {this} is on {nodes[int(node)]}, and tasks are counted node by node, which makes that "
                f"{hosts[this]}; start them with srun --distribution=block"
            )
        return Cluster(jobs, tasks[this], f"{environ.get(_JOB, '')}.{environ.get(_STEP, '')}")


def hosts_of(text: str) -> list[str]:
    """Returns the names in a node list: "a[1-3,07],b" is a1, a2, a3, a07, b.

    Raises:
      ClusterError: it is no node list.
    """
    return [name for part in _parts(text) for name in _expanded(part, text)]


def counts_of(text: str) -> list[int]:
    """Returns the numbers in "2(x3),1": 2, 2, 2, 1.

    Raises:
      ClusterError: it is no list of counts.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not match:
            raise ClusterError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}; it is written as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _parts(text: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text or not parts:
        raise ClusterError(f"the node list {text!r} cannot be read; it is written as a[1-3,7],b")
    return parts


def _expanded(part: str, text: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]+)\](.*)", part)
    if not match:
        return [part]
    names: list[str] = []
    for piece in match[2].split(","):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
        if not ends or int(ends[2] or ends[1]) < int(ends[1]):
            raise ClusterError(f"the node list {text!r} cannot be read; {piece!r} is no range")
        for number in range(int(ends[1]), int(ends[2] or ends[1]) + 1):
            names += [f"{match[1]}{number:0{len(ends[1])}}{rest}" for rest in _expanded(match[3], text)]
    return names


def _tasks(text: str) -> list[Task]:
    tasks: list[Task] = []
    for part in text.split(","):
        job, _, count = part.partition(":")
        if job not in JOBS or not count.isdecimal():
            raise ClusterError(f"{SLURM_TASKS} is {text!r}; it is written as chief:1,worker:2,ps:1")
        tasks += [Task(job, index) for index in range(int(count))]
    return tasks


def _first_port(environ: Mapping[str, str]) -> int:
    job, step = (int(text) if (text := environ.get(name, "")).isdecimal() else 0 for name in (_JOB, _STEP))
    return _LOWEST + (job + _STEPS_APART * step) * _APART % _PORTS


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdecimal():
        raise ClusterError(f"{name} is {text!r}; Slurm gives a number to each task of a step")
    return int(text)
