"""Says what this process would be in a job, and what is in the way: python -m tf2dist.doctor [--json].

Versions; devices and their memory; GPUs, with driver and libraries wanted and found, why one is not used, and the
command that would mend it; the cluster that the environment describes, and what it says differently from
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tf2dist.cluster import environments, rendezvous
from tf2dist.cluster.open_ports import Listener, open_to_others
from tf2dist.cluster.reachability import connect
from tf2dist.cluster.roles import Role, leader_of, role_of
from tf2dist.cluster.spec import Cluster, ClusterError, Task
from tf2dist.errors import UsageError
from tf2dist.runtime import tensorflow_import
from tf2dist.system import cuda_libraries, gpus, standard_output
from tf2dist.system.commands import Parser, as_called

_ROLES = {
    Role.PEER: "runs the loop in lockstep with its peers",
    Role.COORDINATOR: "coordinates: runs the loop and sends the steps to workers",
    Role.SERVER: "serves",
    Role.EVALUATOR: "evaluates the checkpoints of the others",
}


_BUILD_INFO = {"cuda": "cuda_version", "cudnn": "cudnn_version", "capabilities": "cuda_compute_capabilities"}
_INSTALL = "`pip install 'tensorflow[and-cuda]'` brings those that it was built with"


def main(arguments: Sequence[str]) -> int:
    """Prints the report; returns the exit status."""
    parser = Parser(prog=as_called("doctor", "tf2dist.doctor"), description=__doc__, allow_abbrev=False)
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
    """The report: `versions`, `cores`, `memory`, `devices`, `gpus`, `cluster`, `peers`, `open_ports`, `problems`.

    Where the environment describes a cluster that cannot be, `cluster` is None and `cluster_error` says why.
    """
    report: dict = {"versions": rendezvous.versions() | {"python": platform.python_version()}, "problems": []}
    report["cores"] = len(os.sched_getaffinity(0))
    report["memory"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    problems = report["problems"]
    try:
        found = environments.find()
    except ClusterError as error:
        found = environments.Found(None)
        problems.append(str(error))
        report["cluster_error"] = str(error)
    listeners = open_to_others()
    report["cluster"] = _cluster(found, listeners, problems)
    report["peers"] = _peers(found.cluster, timeout, problems) if found.cluster else []
    report["open_ports"] = [vars(listener) for listener in listeners]
    report["devices"] = _devices(problems)
    report["gpus"] = _gpus(sum(device["type"] == "GPU" for device in report["devices"]), problems)
    return report


def _cluster(found: environments.Found, listeners: list[Listener], problems: list[str]) -> dict | None:
    if found.cluster is None:
        return None
    strategy = "ps" if found.cluster.count("ps") else "one" if found.cluster.count("data_worker") else "multiworker"
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
        "spec": found.cluster.described,
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
    reached, answer = False, ""
    try:
        with connect(address, timeout):
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
        devices.append(entry)
    return devices


def _gpus(used: int, problems: list[str]) -> dict | None:
    """What is known of GPUs; None where there are none. `used`: how many TensorFlow sees."""
    driver, cards = cuda_libraries.ask_driver(), cuda_libraries.cards_in_slots()
    if not (driver.gpus or cards or gpus.identifiers()):
        failure = gpus.driver_failure()
        if asked := gpus.asked_for(os.environ):
            failure = f" ({failure})" if failure else ""
            problems.append(
                f"{gpus.VISIBLE}={asked} names a GPU, and none is found{failure}: `unset {gpus.VISIBLE}`, or mend the "
                "driver"
            )
        elif failure:
            problems.append(f"{failure}: mend NVIDIA's driver, or remove it where there is no GPU")
        return None
    wanted, found = _wanted_libraries(), cuda_libraries.library_versions()
    report = {
        "driver": driver.version,
        "devices": [vars(gpu) for gpu in driver.gpus],
        "links": driver.links,
        "peer_access": driver.peer_access,
        "wanted": wanted,
        "found": found,
        "used": used,
        "visible": os.environ.get(gpus.VISIBLE),
    }
    report["hidden"] = _hidden(driver, used)
    if used < max(1, len(driver.gpus)) and not report["hidden"]:
        problems += _why_unused(driver, cards, wanted, found, used)
    elif len(driver.gpus) > 1 and (why := _misfit("nccl", "NCCL, by which GPUs add up gradients,", wanted, found)):
        problems.append(why)
    if used and found["cudnn"] and (why := _misfit("cudnn", "cuDNN, without which convolutions fail,", wanted, found)):
        problems.append(why)
    return report


def _wanted_libraries() -> dict[str, str]:
    """The versions that TensorFlow was built for; empty if it was built without CUDA, or cannot be imported."""
    try:
        build = tensorflow_import.import_tensorflow().sysconfig.get_build_info()
    except ImportError:
        return {}
    if not build.get("is_cuda_build"):
        return {}
    built = {name: build.get(key, "") for name, key in _BUILD_INFO.items()}
    built = {name: " ".join(value) if isinstance(value, list) else value for name, value in built.items()}
    tried = cuda_libraries.wanted_versions()  # which says more than the build's major version of cuDNN, and NCCL's
    return built | {name: tried[name] for name in ("cudnn", "nccl") if name in tried}


def _misfit(name: str, label: str, wanted: dict[str, str], found: dict[str, str], *, loaded: bool = False) -> str:
    """What is wrong with a library, and what mends it; empty if nothing. `loaded`: is it right if it can be loaded?"""
    version = wanted.get(name, "")
    if not found[name]:
        return f"{label} {version + ' ' if version else ''}is wanted and not found: {_INSTALL}"
    fits = cuda_libraries.is_loaded(version, found[name]) if loaded else cuda_libraries.fits(name, version, found[name])
    if version and not fits:
        return f"{label} {version} is wanted, and {found[name]} is found: {_INSTALL}"
    return ""


def _why_unused(
    driver: cuda_libraries.Driver, cards: list[str], wanted: dict[str, str], found: dict[str, str], used: int
) -> list[str]:
    """Why TensorFlow does not use each GPU, in the order in which it would be mended, with the command for it."""
    if not driver.version:
        where = f" (PCI {', '.join(cards)})" if cards else ""
        return [
            f"there is an NVIDIA GPU{where}, and its driver does not answer: install it as your system does, for "
            "example by `sudo ubuntu-drivers install`, start the machine anew, and look at `nvidia-smi`"
        ]
    problems = []
    try:
        gpus.visible()
    except UsageError as error:
        problems.append(f"{error}: `unset {gpus.VISIBLE}`")
    if not wanted:
        return [*problems, "this TensorFlow is built without CUDA: `pip install 'tensorflow[and-cuda]'`"]
    if too_old := cuda_libraries.driver_too_old(driver.version, wanted["cuda"]):
        problems.append(f"{too_old}: update it as your system does, for example by `sudo ubuntu-drivers install`")
    libraries = ("cuda", "CUDA's runtime"), ("cudnn", "cuDNN")
    # An older minor version of cuDNN hides no GPU: it is refused when it is first used.
    problems += filter(None, (_misfit(name, label, wanted, found, loaded=True) for name, label in libraries))
    if missing := cuda_libraries.libraries_missing():
        is_wanted = "is wanted and not" if len(missing) == 1 else "are wanted and not all"
        problems.append(f"{', '.join(missing)} {is_wanted} found: {_INSTALL}")
    least = min(map(_capability, wanted["capabilities"].split()), default=0)
    for gpu in driver.gpus:
        if gpu.compute_capability and _capability(gpu.compute_capability) < least:
            problems.append(
                f"GPU {gpu.index}, {gpu.name}, has compute capability {gpu.compute_capability}, and this TensorFlow is "
                f"built for {least / 10:.1f} and later: build it from source for this one"
            )
    shown = len(driver.gpus)
    with contextlib.suppress(UsageError):
        shown = len(gpus.visible()) or shown
    which = f"that {gpus.VISIBLE} shows" if shown < len(driver.gpus) else f"GPU{'s' * (shown > 1)}"
    return problems or [
        f"TensorFlow sees {used} of {shown} {which}; its own log says why: `TF_CPP_MIN_LOG_LEVEL=0 python -c "
        "'import tensorflow as tf; tf.config.list_physical_devices()'`"
    ]


def _hidden(driver: cuda_libraries.Driver, used: int) -> str:
    """Says which setting hides GPUs from TensorFlow on purpose; "" if none does."""
    with contextlib.suppress(UsageError):
        shown, there = len(gpus.visible()), len(driver.gpus)
        if shown < there and used >= shown:
            value = os.environ.get(gpus.VISIBLE)
            return f"{gpus.VISIBLE}={value!r} hides {there - shown} of {there}: `unset {gpus.VISIBLE}` shows all"
    return ""


def _capability(text: str) -> int:
    """A compute capability as ten times the number: "sm_80", "compute_80" and "8.0" are 80."""
    numbers = cuda_libraries.version_numbers(text)
    return numbers[0] * 10 + numbers[1] if len(numbers) > 1 else numbers[0] if numbers else 0


def _gpu_lines(report: dict) -> list[str]:
    found, wanted = report["found"], report["wanted"]
    libraries = [
        f"{label} {wanted.get(name) or 'not'} wanted, {found[name] or 'none'} found"
        for name, label in (("cuda", "CUDA"), ("cudnn", "cuDNN"), ("nccl", "NCCL"))
    ]
    text = [f"gpus       driver {report['driver'] or 'does not answer'}; {'; '.join(libraries)}"]
    text += [
        f"gpu {gpu['index']}      {gpu['name']}"
        + (f", {gpu['memory'] / 1024:.1f} GiB ({gpu['free'] / 1024:.1f} free)" if gpu["memory"] else "")
        + (f", compute capability {gpu['compute_capability']}" if gpu["compute_capability"] else "")
        for gpu in report["devices"]
    ]
    if report["hidden"]:
        text.append(f"           {report['hidden']}")
    if report["links"]:
        links = ", ".join(f"{pair} {link}{_peers_of(report, pair)}" for pair, link in report["links"].items())
        text.append(f"gpu links  {links} (NV: NVLink, PIX to PHB: PCIe, NODE and SYS: through processors)")
    return text


def _peers_of(report: dict, pair: str) -> str:
    """Whether two GPUs read each other's memory; empty where nvidia-smi does not tell."""
    answer = report["peer_access"].get(pair)
    return "" if answer is None else " with peer access" if answer == "OK" else f" without peer access ({answer})"


def lines(report: dict) -> list[str]:
    """The report for a person."""
    text = ["versions   " + ", ".join(f"{name} {number}" for name, number in report["versions"].items())]
    text.append(f"host       {report['cores']} cores, {report['memory'] / 2**30:.1f} GiB")
    for device in report["devices"]:
        text.append(f"device     {device['name']}" + (f" {device['model']}" if device.get("model") else ""))
    text += (
        _gpu_lines(report["gpus"]) if report["gpus"] else ["gpus       none: no NVIDIA GPU is found in this machine"]
    )
    cluster = report["cluster"]
    if cluster is None and "cluster_error" in report:
        text.append("cluster    described wrongly, so that a job would not start; see below")
    elif cluster is None:
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
    sys.exit(standard_output.run(main))
