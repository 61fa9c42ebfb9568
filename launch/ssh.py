"""Runs every task on its host, over the system's ssh with the user's own configuration and keys."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence

from launch import UsageError, layout, linux, process, remote
from launch.layout import HERE, Layout
from launch.local import LAUNCHED_AT
from launch.process import Process, Settings, supervise
from launch.program import is_script
from tf2dist import preflight
from tf2dist.cluster import Cluster

# What a job is likely to mean when it was set here; anything else is named with --env.
_HANDED_ON = ("TF_", "TF2DIST_", "TFDS_", "KERAS_", "XLA_", "GRPC_", "NCCL_", "CUDA_", "OMP_", "PYTHON")
# sshd drops connections when more than ten of them have not yet proved who they are (MaxStartups in sshd_config).
_AT_ONCE, _AT_ONCE_APART = 8, 1.0  # connections to a host, and seconds until the next ones
_NOT = ("TF_CONFIG", "PYTHONHOME", "PYTHONSTARTUP")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `python -m launch ssh`."""
    layout.add_arguments(parser)
    process.add_arguments(parser)
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
        help=f"handed on to every task, besides {', '.join(f'{name}*' for name in _HANDED_ON)}",
    )


def start(options: argparse.Namespace, program: Sequence[str]) -> int:
    """Runs the job that the command line asks for; returns its exit status.

    Raises:
      UsageError: the options are wrong, or a host cannot run its tasks: then nothing was started on any.
    """
    settings = process.settings(options)
    Settings(**settings)
    wanted = layout.read(options)
    if options.hosts is None and options.hostfile is None and options.cluster is None:
        raise UsageError("there are no hosts; name them with --hosts=A,B, --hostfile=FILE or --cluster=FILE")
    if not 0 < options.connect_timeout < float("inf"):
        raise UsageError(f"--connect_timeout={options.connect_timeout:g} must be a number of seconds above 0")
    try:
        ssh = shlex.split(options.ssh)
    except ValueError as error:
        raise UsageError(f"--ssh={options.ssh} cannot be read: {str(error).lower()}") from None
    cluster = wanted.cluster(options.port, address=_addresses(ssh, wanted.hosts).__getitem__)
    env = _handed_on(options.env) | layout.environment(options)
    directory = os.path.abspath(options.directory or "")
    orders = [
        _order(options, ssh, place, number, cluster, env, directory, program)
        for place, number in zip(wanted.places, _numbers([place.host for place in wanted.places]), strict=True)
    ]
    if options.dry_run:
        for order, place in zip(orders, wanted.places, strict=True):
            argv = (options.python, *([] if is_script(program[0]) else ["-m"]), *program)
            print(f"[{place.task}] {place.host}: {layout.shown(directory, order['keeper']['env'], argv)}")
        return 0
    _look(options, ssh, wanted, cluster, directory, program)
    processes = [
        Process(
            str(place.task),
            ("-m", "launch.remote"),
            {remote.ORDER: json.dumps(order)},
            serves=wanted.serves(place.task),
            replaceable=wanted.serves(place.task) and place.task.job == "worker",
            lost=remote.LOST,
        )
        for order, place in zip(orders, wanted.places, strict=True)
    ]
    status = supervise(processes, preload=("launch.keeper",), **settings).status
    return 1 if status == remote.LOST else status


def _numbers(hosts: Sequence[str]) -> list[int]:
    """How many times each host was named before."""
    return [hosts[:place].count(host) for place, host in enumerate(hosts)]


def _order(
    options, ssh, place: layout.Placed, number: int, cluster: Cluster, env, directory: str, program: Sequence[str]
) -> dict:
    """What the near end does for a task, the `number`-th on its host, and what it tells the far end to do."""
    began = os.environ.get(LAUNCHED_AT) or f"{linux.began():.2f}"
    task_env = {**env, LAUNCHED_AT: began, "TF_CONFIG": cluster.at(place.task).to_tf_config()}
    return {
        "host": place.host,
        "delay": _AT_ONCE_APART * (number // _AT_ONCE),
        "command": remote.command(ssh, place.host, options.python, options.connect_timeout),
        "keeper": {
            "directory": directory,
            "program": list(program),
            "port": None if place.task.job == "evaluator" else cluster.port(place.task),
            "env": {"PYTHONUNBUFFERED": "1", **task_env},
            "grace": max(0.5, options.grace - 2.0),  # the far end kills before the near end cuts the connection
        },
    }


def _handed_on(named: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    env = {name: value for name, value in environ.items() if name.startswith(_HANDED_ON) and name not in _NOT}
    for text in named:
        name, equals, value = text.partition("=")
        if not name or name == "TF_CONFIG":
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
    found = {}
    for host in hosts:
        try:
            done = subprocess.run(
                [*ssh, "-G", remote.bare(host)], capture_output=True, text=True, check=False, timeout=30
            )
        except (OSError, IndexError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"--ssh={shlex.join(ssh)} cannot be run: {error}") from None
        if done.returncode:
            raise UsageError(f"--ssh={shlex.join(ssh)} is refused: {_last(done.stderr)}")
        names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("hostname ")]
        name = names[0] if names else remote.bare(host).rpartition("@")[2]
        found[host] = f"[{name}]" if ":" in name else name
    here = [host for host, name in found.items() if _loopback(name)]
    if here and len(hosts) > 1:
        raise UsageError(f"{here[0]} is another machine on each host; name this one as the others know it")
    return found


def _loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == HERE


def _look(options, ssh, wanted: Layout, cluster: Cluster, directory: str, program: Sequence[str]) -> None:
    """Asks every host at once whether it could run its tasks.

    Raises:
      UsageError: names every one that could not, and why.
    """
    mark = uuid.uuid4().hex
    asked = []
    for host in wanted.hosts:
        ports = {str(p.task): cluster.port(p.task) for p in wanted.members if p.host == host}
        order = {"look": mark, "directory": directory, "program": list(program), "ports": ports}
        asked.append((host, json.dumps(order) + "\n"))
    # Beyond its own limits, for ssh to connect and for a slow host to start Python.
    deadline = time.monotonic() + options.connect_timeout + max(20.0, options.connect_timeout)
    running = []
    problems = {}
    try:
        for host, order in asked:
            pipe = subprocess.PIPE
            ask = remote.command(ssh, host, options.python, options.connect_timeout)
            pipes = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "text": True, "errors": "replace"}
            running.append((host, order, subprocess.Popen(ask, **pipes, start_new_session=True)))
        for host, order, asking in running:
            if why := _answer(asking, order, mark, deadline):
                problems[host] = why
    finally:
        for _, _, asking in running:
            if asking.poll() is None:
                os.killpg(asking.pid, signal.SIGKILL)  # also a command that ssh was told to connect through
            asking.wait()
    if problems:
        raise UsageError("; ".join(f"{host}: {why}" for host, why in problems.items()) + "; nothing was started")


def _answer(asking: subprocess.Popen, order: str, mark: str, deadline: float) -> str:
    """What keeps a host from running its tasks, empty if nothing does."""
    try:
        out, err = asking.communicate(order, timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "it did not answer in time"
    lines = [line.removeprefix(mark) for line in out.splitlines() if line.startswith(mark)]
    if not lines:
        if asking.returncode == 255:
            return _last(err) or "ssh cannot connect"
        if "No module named 'launch" in err:
            return "tf2dist is not installed for the Python there; name another one with --python"
        return f"{_last(err) or _last(out) or 'it says nothing'} (name the Python of the hosts with --python)"
    found = json.loads(lines[-1])
    if found["problem"]:
        return found["problem"]
    ours = preflight.versions()
    for package, version in ours.items():
        if found["versions"].get(package) != version:
            return f"it has {package} {found['versions'].get(package)}, and this host has {version}"
    return ""


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
