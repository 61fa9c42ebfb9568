"""Says what this process would be in a job, and what is in the way: python -m tf2dist.doctor [--json].

Versions; devices and their memory; the cluster that the environment describes, and what it says differently from
TensorFlow; whether every peer can be reached; ports that other machines can reach. Exit status: 0 if nothing is in the
way, 1 if something is.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

from tf2dist.cluster import environments, rendezvous
from tf2dist.cluster.open_ports import Listener, open_to_others
from tf2dist.cluster.roles import Role, leader_of, role_of
from tf2dist.cluster.spec import Cluster, ClusterError, Task
from tf2dist.runtime import tensorflow_import
from tf2dist.system.commands import Parser

_ROLES = {
    Role.PEER: "runs the loop in lockstep with its peers",
    Role.COORDINATOR: "coordinates: runs the loop and sends the steps to workers",
    Role.SERVER: "serves",
    Role.EVALUATOR: "evaluates the checkpoints of the others",
}


def main(arguments: list[str] | None = None) -> int:
    """Prints the report; returns the exit status."""
    parser = Parser(prog="python -m tf2dist.doctor", description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="for a peer to answer (default: 5)")
    options = parser.parse_args(arguments)
    if not 0 < options.timeout < float("inf"):
        print(f"doctor: --timeout={options.timeout:g} must be a number of seconds above 0", file=sys.stderr)
        return 2
    report = examine(options.timeout)
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        text = "\n".join(lines(report))
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding))
    return 1 if report["problems"] else 0


def examine(timeout: float) -> dict:
    """The report: `versions`, `cores`, `memory`, `devices`, `cluster`, `peers`, `open_ports`, `problems`."""
    report: dict = {"versions": rendezvous.versions() | {"python": platform.python_version()}, "problems": []}
    report["cores"] = len(os.sched_getaffinity(0))
    report["memory"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    problems = report["problems"]
    try:
        found = environments.find()
    except ClusterError as error:
        found = environments.Found(None)
        problems.append(str(error))
    listeners = open_to_others()
    report["cluster"] = _cluster(found, listeners, problems)
    report["peers"] = _peers(found.cluster, timeout, problems) if found.cluster else []
    report["open_ports"] = [vars(listener) for listener in listeners]
    report["devices"] = _devices(problems)
    return report


def _cluster(found: environments.Found, listeners: list[Listener], problems: list[str]) -> dict | None:
    if found.cluster is None:
        return None
    strategy = "ps" if found.cluster.count("ps") else "multiworker"
    role = None
    try:
        role = role_of(strategy, found.cluster)
    except ClusterError as error:
        problems.append(str(error))
    notes = list(found.notes)
    if itself := _running(found, listeners):
        notes.append(f"this task runs already: {itself.name} (pid {itself.pid})")
    elif role is not Role.EVALUATOR:
        _check_port(found.cluster, problems)
    return {
        "source": found.source,
        "notes": notes,
        "task": str(found.cluster.task),
        "strategy": strategy,
        "role": role and role.name.lower(),
        "leader": str(leader_of(found.cluster)),
        "spec": found.cluster.spec,
    }


def _peers(cluster: Cluster, timeout: float, problems: list[str]) -> list[dict]:
    members = [task for task in cluster.tasks if task.job != "evaluator"]
    others = [task for task in members if task != cluster.task]
    with ThreadPoolExecutor(max_workers=32) as pool:
        peers = list(pool.map(lambda task: _peer(cluster, task, timeout), others))
    # One that refuses has not been started yet, perhaps; its host is there.
    problems += [f"{p['task']} at {p['address']}: {p['answer']}" for p in peers if not p["reached"]]
    return peers


def _check_port(cluster: Cluster, problems: list[str]) -> None:
    try:
        rendezvous.check_port_free(cluster)
    except ClusterError as error:
        problems.append(str(error))


def _running(found: environments.Found, listeners: list[Listener]) -> Listener | None:
    """The process of this very task, as in a pod that one looks into: it has the port, and the same description."""
    if found.cluster is None or found.cluster.task.job == "evaluator":
        return None
    mine = f"{found.source}={os.environ.get(found.source, '')}".encode(errors="surrogateescape")
    for listener in listeners:
        with contextlib.suppress(OSError), open(f"/proc/{listener.pid}/environ", "rb") as file:
            if listener.port == found.cluster.port() and mine in file.read().split(b"\0"):
                return listener
    return None


def _peer(cluster: Cluster, task: Task, timeout: float) -> dict:
    address = cluster.address(task)
    host, _, port = address.rpartition(":")
    reached, answer = False, ""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout):
            reached, answer = True, "it listens"
    except ConnectionRefusedError:
        reached, answer = True, "its host is there; nothing listens at this port yet"
    except socket.gaierror:
        answer = "no such host"
    except TimeoutError:
        answer = f"no answer in {timeout:g} s: it is off, or a firewall is in between"
    except OSError as error:
        answer = (error.strerror or str(error)).lower()
    return {"task": str(task), "address": address, "reached": reached, "answer": answer}


def _devices(problems: list[str]) -> list[dict]:
    try:
        tf = tensorflow_import.import_tensorflow()
    except ImportError as error:
        problems.append(f"TensorFlow cannot be imported: {error}")
        return []
    devices = []
    for device in tf.config.list_physical_devices():
        entry = {"name": device.name.removeprefix("/physical_device:"), "type": device.device_type}
        if device.device_type == "GPU":
            entry["model"] = tf.config.experimental.get_device_details(device).get("device_name", "")
            entry["memory"] = _gpu_memory(tf, entry["name"])
        devices.append(entry)
    return devices


def _gpu_memory(tf, name: str) -> int | None:
    """Bytes that TensorFlow may use of a GPU; None if it does not say."""
    from tf2dist.compat.device_list import memory_limits

    return memory_limits().get(name)


def lines(report: dict) -> list[str]:
    """The report for a person."""
    text = ["versions   " + ", ".join(f"{name} {number}" for name, number in report["versions"].items())]
    text.append(f"host       {report['cores']} cores, {report['memory'] / 2**30:.1f} GiB")
    for device in report["devices"]:
        memory = f", {device['memory'] / 2**30:.1f} GiB" if device.get("memory") else ""
        text.append(f"device     {device['name']}" + (f" {device['model']}" if device.get("model") else "") + memory)
    cluster = report["cluster"]
    if cluster is None:
        text.append("cluster    none: this process is alone (no TF_CONFIG, CLUSTER_SPEC, SM_HOSTS or Slurm step)")
    else:
        text.append(f"cluster    from {cluster['source']}, strategy {cluster['strategy']}, led by {cluster['leader']}")
        text += [f"           {note}" for note in cluster["notes"]]
        text += [f"           {job}: {', '.join(hosts)}" for job, hosts in cluster["spec"].items()]
        if cluster["role"]:
            text.append(f"this task  {cluster['task']}, which {_ROLES[Role[cluster['role'].upper()]]}")
    text += [f"peer       {peer['task']} at {peer['address']}: {peer['answer']}" for peer in report["peers"]]
    for listener in report["open_ports"]:
        text.append(
            f"open port  {listener['port']}, {listener['name']} (pid {listener['pid']}): TensorFlow listens there "
            "without a password, and whoever reaches it can run anything; use a private network or --isolate"
        )
    text += [f"problem    {problem}" for problem in report["problems"]]
    return [*text, "nothing is in the way" if not report["problems"] else f"{len(report['problems'])} in the way"]


if __name__ == "__main__":
    sys.exit(main())
