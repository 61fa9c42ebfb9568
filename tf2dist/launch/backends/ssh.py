"""Runs every task on its host, over the system's ssh with the user's own configuration and keys."""

from __future__ import annotations

import argparse
import contextlib
import functools
import ipaddress
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tf2dist.cluster import rendezvous
from tf2dist.cluster.loss_policy import LOST_ANOTHER
from tf2dist.cluster.spec import Cluster
from tf2dist.errors import UsageError
from tf2dist.launch import cluster_layout, gpu_sharing, supervisor
from tf2dist.launch.backend import Backend
from tf2dist.launch.backends import ssh_connection, ssh_remote_agent
from tf2dist.launch.cluster_layout import LOCALHOST, Layout, PlacedTask
from tf2dist.launch.gpu_sharing import GpuSharing
from tf2dist.launch.process import Process
from tf2dist.launch.process_group_settings import Settings
from tf2dist.launch.supervisor import supervise
from tf2dist.launch.user_program import is_script
from tf2dist.system import linux
from tf2dist.system.environment_variables import JOB_ID, LAUNCHED_AT, LOSS_STATUS, PREEMPTIBLE

# Variables that concern a job are forwarded when they begin so; others are named with --env.
_FORWARDED = ("TF_", "TF2DIST_", "TFDS_", "KERAS_", "XLA_", "GRPC_", "NCCL_", "CUDA_", "OMP_", "PYTHON")
# sshd drops connections when more than ten of them have not yet proved who they are (MaxStartups in sshd_config).
_CONNECTIONS_AT_ONCE, _CONNECTION_INTERVAL = 8, 2.0  # connections to a host, and seconds until the next ones
# Seconds after which nothing runs any more on a host that cannot be reached.
_TASKS_GONE = ssh_remote_agent.HEARTBEAT_TIMEOUT + ssh_remote_agent.LAST_GRACE + ssh_remote_agent.KILLED
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # of which a shell can be told
_NOT_FORWARDED = ("TF_CONFIG", "PYTHONHOME", "PYTHONSTARTUP")


class SshBackend:
    """`python -m launch ssh`."""

    summary = "Runs every task on its host, over the system's ssh with the user's own configuration and keys."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        cluster_layout.add_arguments(parser)
        supervisor.add_arguments(parser)
        group = parser.add_argument_group("the hosts")
        group.add_argument("--ssh", default="ssh", metavar="COMMAND", help="as 'ssh -p 2200' (default: ssh)")
        group.add_argument(
            "--connect_timeout", type=float, default=10.0, metavar="S", help="for a host to answer (default: 10)"
        )
        group.add_argument("--python", default=sys.executable, metavar="PATH", help="of every host (default: this one)")
        group.add_argument("--directory", metavar="DIR", help="to run in on every host (default: this one)")
        group.add_argument(
            "--env",
            action="append",
            default=[],
            metavar="NAME[=VALUE]",
            help=f"handed on to every task, besides {', '.join(f'{name}*' for name in _FORWARDED)}",
        )
        gpu_sharing.add_arguments(parser)

    def start(self, options: argparse.Namespace, program: Sequence[str]) -> int:
        """Runs the job to its end; returns its exit status.

        Raises:
          UsageError: the options are wrong, or a host cannot run its tasks: then nothing was started on any.
        """
        layout = cluster_layout.from_options(options)
        settings = supervisor.settings_of(options, layout)
        Settings(**settings)
        gpu_sharing.check_options(options.gpus_per_worker, options.gpu_memory)
        if options.hosts is None and options.hostfile is None and options.cluster is None:
            raise UsageError("there are no hosts; name them with --hosts=A,B, --hostfile=FILE or --cluster=FILE")
        if not 0 < options.connect_timeout < float("inf"):
            raise UsageError(f"--connect_timeout={options.connect_timeout:g} must be a number of seconds above 0")
        try:
            ssh = shlex.split(options.ssh)
        except ValueError as error:
            raise UsageError(f"--ssh={options.ssh} cannot be read: {str(error).lower()}") from None
        addresses = _addresses(ssh, layout.hosts)
        env = _forwarded_environment(options.env) | cluster_layout.task_environment(options)
        directory = os.path.abspath(options.directory or "")
        job = _RemoteJob(options, ssh, addresses, env, directory, program, layout)
        if options.dry_run:
            for order, place in zip(job.orders(layout), layout.placed, strict=True):
                argv = (options.python, *([] if is_script(program[0]) else ["-m"]), *program)
                command = cluster_layout.as_shell_command(directory, order["agent"]["env"], argv)
                print(f"[{place.task}] {place.host}: {command}")
            return 0
        elastic = layout.fewest_workers is not None
        status = supervise(
            job.processes(),
            next_attempt=job.next_attempt if elastic else None,
            patience=_TASKS_GONE + (options.start_timeout or rendezvous.start_timeout()),
            preload=("tf2dist.launch.backends.ssh_remote_agent",),
            loss_summary=layout.loss_summary,
            **settings,
        ).status
        return 1 if status == ssh_connection.LOST else status


BACKEND: Backend = SshBackend()


def _occurrences(hosts: Sequence[str]) -> list[int]:
    """For each host in the list, how many times it comes before."""
    seen: Counter[str] = Counter()
    before: list[int] = []
    for host in hosts:
        before.append(seen[host])
        seen[host] += 1
    return before


class _RemoteJob:
    """A job over ssh, each attempt at which may have fewer workers than `layout`, on the hosts that answer.

    Args:
      options: of the command line.
      ssh: the command.
      addresses: what the other hosts call each host.
      env: of all tasks.
      directory: in which they run.
      program: module or script, and its arguments.
      layout: of all tasks.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        ssh: Sequence[str],
        addresses: Mapping[str, str],
        env: Mapping[str, str],
        directory: str,
        program: Sequence[str],
        layout: Layout,
    ) -> None:
        self._options, self._ssh, self._addresses, self._env = options, ssh, addresses, env
        self._directory, self._program, self._layout = directory, program, layout
        self._job_id = uuid.uuid4().hex
        self._said = ""  # why the next attempt could not begin
        self._over = math.inf  # when the last attempt was, by the monotonic clock; inf while one is under way

    def orders(self, layout: Layout) -> list[dict[str, Any]]:
        """What `ssh_connection` is to do for each task, and the order for the remote agent."""
        cluster = self._cluster(layout)
        numbers = _occurrences([place.host for place in layout.placed])
        return [self._order(place, number, cluster) for place, number in zip(layout.placed, numbers, strict=True)]

    def processes(self, leaves_out: Callable[[_Problem], bool] = lambda problem: problem.is_away) -> list[Process]:
        """The processes of an attempt.

        Args:
          leaves_out: whether a host with such a problem is left out, if the job may go on without its workers.

        Raises:
          UsageError: names every other host that could not run its tasks, and why.
        """
        layout, answers = self._layout, self._ask(self._layout)
        problems = {host: answer for host, answer in answers.items() if isinstance(answer, _Problem)}
        out = {host: problem for host, problem in problems.items() if leaves_out(problem)}
        if out and (fewer := layout.without([place for place in layout.placed if place.host in out])):
            layout, answers = fewer, self._ask(fewer)
            problems = {host: answer for host, answer in answers.items() if isinstance(answer, _Problem)}
        if problems:
            named = "; ".join(f"{host}: {problem.text}" for host, problem in problems.items())
            raise UsageError(f"{named}; nothing was started")
        for host, problem in out.items():
            supervisor.say(f"{host}: {problem.text}")
        if out:
            supervisor.say(f"the job has {layout.count('worker')} of {self._layout.count('worker')} workers")
        sharing = {host: answer for host, answer in answers.items() if not isinstance(answer, _Problem)}
        for host, found in sharing.items():
            if found.note:
                supervisor.say(f"{host}: {found.note}")
        orders, variables = self.orders(layout), gpu_sharing.agreed(sharing)
        for order, place in zip(orders, layout.placed, strict=True):
            order["agent"]["env"] |= variables[str(place.task)]
            order["agent"]["env"] |= {JOB_ID: self._job_id, LOSS_STATUS: str(LOST_ANOTHER)}
        return [
            Process(
                str(place.task),
                ("-m", "tf2dist.launch.backends.ssh_connection"),
                {ssh_connection.ORDER: json.dumps(order)},
                serves=layout.serves(place.task),
                coordinator=str(coordinator) if (coordinator := layout.coordinator_of(place.task)) else None,
                is_needed=layout.coordinator_needs(place.task),
                lost_status=ssh_connection.LOST,
            )
            for order, place in zip(orders, layout.placed, strict=True)
        ]

    def next_attempt(self, killed: str) -> list[Process] | None:
        """As `processes`; None, and a line that says why, if there are too few hosts, or tasks may still run on one.

        Those on a host that cannot be reached end by themselves, and would write to the same files until then.
        """
        now = time.monotonic()
        self._over = min(self._over, now)
        try:
            found = self.processes(lambda problem: now - self._over > _TASKS_GONE)
        except UsageError as error:
            if str(error) != self._said:
                supervisor.say(str(error))
            self._said = str(error)
            return None
        self._said, self._over = "", math.inf
        return found

    def _cluster(self, layout: Layout) -> Cluster:
        return layout.cluster(self._options.port, address=self._addresses.__getitem__)

    def _order(self, place: PlacedTask, number: int, cluster: Cluster) -> dict[str, Any]:
        """The order for the `number`-th task of a host."""
        options = self._options
        began = os.environ.get(LAUNCHED_AT) or f"{linux.began():.2f}"
        task_env = {**self._env, LAUNCHED_AT: began, "TF_CONFIG": cluster.at(place.task).to_tf_config()}
        return {
            "host": place.host,
            "delay": _CONNECTION_INTERVAL * (number // _CONNECTIONS_AT_ONCE),
            "command": ssh_connection.command(self._ssh, place.host, options.python, options.connect_timeout),
            "agent": {
                "directory": self._directory,
                "program": list(self._program),
                "port": None if place.task.job == "evaluator" else cluster.port(place.task),
                "env": {"PYTHONUNBUFFERED": "1", PREEMPTIBLE: "1", **task_env},
                "grace": max(0.5, options.grace - 2.0),  # the far end kills before the near end cuts the connection
            },
        }

    def _ask(self, layout: Layout) -> dict[str, GpuSharing | _Problem]:
        """Asks every host at once whether it could run its tasks, and how it divides its GPUs among them."""
        options, cluster = self._options, self._cluster(layout)
        mark = uuid.uuid4().hex
        questions: list[str] = []
        tasks = [(place.task.job, place.task.index, place.host) for place in layout.placed]
        gpus: dict[str, Any] = {"tasks": tasks, "each": options.gpus_per_worker, "memory_mib": options.gpu_memory}
        for host in layout.hosts:
            ports = {str(p.task): cluster.port(p.task) for p in layout.cluster_members if p.host == host}
            question: dict[str, Any] = {"check": mark, "directory": self._directory, "program": list(self._program)}
            question |= {"ports": ports, "env": {**self._env}, "gpus": {**gpus, "host": host}}
            questions.append(json.dumps(question) + "\n")
        # Beyond its own limits, for ssh to connect and for a slow host to start Python.
        connect_timeout: float = options.connect_timeout
        deadline = time.monotonic() + connect_timeout + max(20.0, connect_timeout)
        running: list[subprocess.Popen[str]] = []
        # A thread for each: a host has its question only when somebody writes it, and some take seconds for the answer.
        with ThreadPoolExecutor(len(questions)) as threads:
            try:
                for host in layout.hosts:
                    pipe = subprocess.PIPE
                    ask = ssh_connection.command(self._ssh, host, options.python, connect_timeout)
                    asking = subprocess.Popen(
                        ask, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
                    )
                    running.append(asking)
                answer = functools.partial(_answer_of, mark=mark, deadline=deadline)
                answers = list(threads.map(answer, running, questions))
            finally:
                for asking in running:
                    if asking.poll() is None:
                        with contextlib.suppress(ProcessLookupError):  # a thread has just waited for it
                            os.killpg(asking.pid, signal.SIGKILL)  # also a command that ssh was told to connect through
                    asking.wait()
        return dict(zip(layout.hosts, answers, strict=True))


@dataclass(frozen=True)
class _Problem:
    """What keeps a host from running its tasks.

    Attributes:
      text: in words.
      is_away: is there no connection to it? Not where it refuses one, or its name is not known.
    """

    text: str
    is_away: bool = False


def _forwarded_environment(named: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    env = {
        name: value
        for name, value in environ.items()
        if name.startswith(_FORWARDED) and name not in _NOT_FORWARDED and _VARIABLE.fullmatch(name)
    }
    for text in named:
        name, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(name) or name == "TF_CONFIG":
            raise UsageError(f"--env={text} names no variable that can be handed on; it is NAME or NAME=VALUE")
        if not equals and name not in environ:
            raise UsageError(f"--env={text}: there is no such variable here; a value is given with {text}=VALUE")
        env[name] = value if equals else environ[name]
    return env


def _addresses(ssh: Sequence[str], hosts: Sequence[str]) -> dict[str, str]:
    """What the other hosts call each host: its HostName in the user's ssh configuration.

    Raises:
      UsageError: there is no ssh, or a host would look for another one on itself.
    """
    found: dict[str, str] = {}
    for host in hosts:
        try:
            done = subprocess.run(
                [*ssh, "-G", ssh_connection.bare(host)], capture_output=True, text=True, check=False, timeout=30
            )
        except (OSError, IndexError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"--ssh={shlex.join(ssh)} cannot be run: {error}") from None
        if done.returncode:
            raise UsageError(f"--ssh={shlex.join(ssh)} is refused: {_last_line(done.stderr)}")
        names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("hostname ")]
        name = names[0] if names else ssh_connection.bare(host).rpartition("@")[2]
        found[host] = f"[{name}]" if ":" in name else name
    here = [host for host, name in found.items() if _is_loopback(name)]
    if here and len(hosts) > 1:
        raise UsageError(f"{here[0]} is another machine on each host; name this one as the others know it")
    return found


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == LOCALHOST


def _answer_of(asking: subprocess.Popen[str], order: str, mark: str, deadline: float) -> GpuSharing | _Problem:
    """How a host divides its GPUs; or what keeps it from running its tasks."""
    try:
        out, err = asking.communicate(order, timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return _Problem("it did not answer in time")
    lines = [line.removeprefix(mark) for line in out.splitlines() if line.startswith(mark)]
    if not lines:
        if asking.returncode == 255:
            said = _last_line(err)
            return _Problem(said or "ssh cannot connect", is_away=said.startswith("ssh: connect to host"))
        if "No module named 'tf2dist" in err:
            return _Problem("tf2dist is not installed for the Python there; name another one with --python")
        said = _last_line(err) or _last_line(out) or "it says nothing"
        return _Problem(f"{said} (name the Python of the hosts with --python)")
    try:
        found = json.loads(lines[-1])
        if found["problem"]:
            return _Problem(str(found["problem"]))
        ours = rendezvous.versions()
        for package, version in ours.items():
            if found["versions"].get(package) != version:
                return _Problem(f"it has {package} {found['versions'].get(package)}, and this host has {version}")
        return GpuSharing(**found["gpus"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return _Problem(f"its answer cannot be read, as of another version of tf2dist: {lines[-1][:200].strip()!r}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
