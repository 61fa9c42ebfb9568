"""Everything that can be wrong with how a job is started: it ends within its time limit, and names the culprit.

The cases are all started at once, since they mostly wait; each test looks at one of them.
"""

import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest

from tf2dist.launch import free_ports

ROOT = pathlib.Path(__file__).parents[2]
LIMIT, LONG = 10.0, 40.0  # seconds that a task waits for the others
DEADLINE = 250.0
pytestmark = pytest.mark.slow
PROGRAM = """
from trainers.common import main

def train(run, prepared):
    print("trained")
    return {}

if __name__ == "__main__":
    main.run(train)
"""
CONFIG, PORTS = "TF_CONFIG", 4


@dataclass
class Case:
    """Processes, the first of which must end so.

    Args:
      name: what is wrong.
      said: in the one line that the first process ends with; A to D stand for addresses on this host.
      status: of the first process.
      first: its environment and flags.
      others: those of the others.
      stranger: what somebody else who listens at D says; None if nobody does.
      limit: seconds that a task waits for the others: long where those that come must have come by then.
    """

    name: str
    said: str
    status: int
    first: tuple[dict, list]
    others: list[tuple[dict, list]] = field(default_factory=list)
    stranger: bytes | None = None
    limit: float = LIMIT


PS = {"chief": ["A"], "worker": ["B", "C"], "ps": ["D"]}
PEERS = {"worker": ["A", "B"]}


def at(job, index, cluster=PS, **environ):
    return {CONFIG: json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}), **environ}, []


def hosts(*flags):
    return {}, list(flags)


OTHER = {**PS, "ps": ["D", "127.0.0.1:1"]}
CHIEF, WORKERS, SERVER = at("chief", 0), [at("worker", 0), at("worker", 1)], at("ps", 0)
CASES = [
    Case("a missing server", "ps 0 at D is missing after 40 s: connection refused", 1, CHIEF, WORKERS, limit=LONG),
    Case("a missing worker", "worker 1 at C is missing after 40 s: connection refused", 1, CHIEF,
         [WORKERS[0], SERVER], limit=LONG),
    Case("a missing chief", "worker 0 waited 10 s for chief 0 at A, which did not come", 1, WORKERS[0], [SERVER]),
    Case("a missing peer", "worker 1 at B is missing after 10 s", 1, at("worker", 0, PEERS)),
    Case("a missing first peer", "worker 1 waited 10 s for worker 0 at A", 1, at("worker", 1, PEERS)),
    Case("another cluster on a server", "was started with another cluster", 1, CHIEF,
         [*WORKERS, at("ps", 0, OTHER)], limit=LONG),
    Case("another cluster on a peer", "was started with another cluster", 1, at("worker", 0, PEERS),
         [at("worker", 1, {"worker": ["A", "B", "C"]})], limit=LONG),
    Case("other versions", "ps 0 at D has other versions: {'tensorflow'", 1, CHIEF,
         [*WORKERS, at("ps", 0, PYTHONPATH="VERSIONS")], limit=LONG),
    Case("a wrong index", "was started as worker 1, and is taken for worker 0", 1, at("chief", 0),
         [at("worker", 1, {**PS, "worker": ["C", "B"]}), SERVER], limit=LONG),
    Case("a task that is started twice", "port D", 2, SERVER, stranger=b""),
    Case("a host that is not known", "at nowhere.invalid:1 is missing after 10 s: no such host", 1,
         at("worker", 0, {"worker": ["A", "nowhere.invalid:1"]})),
    Case("something that answers nothing", "at D is missing after 10 s: it accepts connections, but does not answer", 1,
         at("worker", 0, {"worker": ["A", "D"]}), stranger=b""),
    Case("something that answers something else", "but does not answer as a task of this job", 1,
         at("worker", 0, {"worker": ["A", "D"]}), stranger=b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    Case("an index beyond the last", "the index goes from 0 to 1", 2, at("worker", 2)),
    Case("an index below the first", "the index goes from 0 to 1", 2, at("worker", -1)),
    Case("an index that is none", "index must be a whole number, found 'x'", 2, at("worker", "x")),
    Case("a job that the cluster has not", "but the cluster's jobs are worker", 2, at("ps", 0, PEERS)),
    Case("a job that there is not", "unknown job 'boss'", 2, at("boss", 0, {"boss": ["A"]})),
    Case("text that is no JSON", "TF_CONFIG is not JSON", 2, ({CONFIG: "{'cluster'"}, [])),
    Case("no cluster", 'TF_CONFIG has no "cluster" object', 2, ({CONFIG: '{"task": {}}'}, [])),
    Case("no task", "does not say which task this is", 2, ({CONFIG: '{"cluster": {"worker": ["a:1"]}}'}, [])),
    Case("an address without a port", "has the address 'a'", 2, at("worker", 0, {"worker": ["a"]})),
    Case("an address for two", "is given to worker 0 and to ps 0", 2, at("ps", 0, {"worker": ["A"], "ps": ["A"]})),
    Case("two chiefs", "names 2 chiefs", 2, at("chief", 0, {"chief": ["A", "B"], "worker": ["C"]})),
    Case("a chief under both names", "names chief twice, also as master", 2,
         at("chief", 0, {"chief": ["A"], "master": ["B"], "worker": ["C"]})),
    Case("no worker", "the cluster has no worker", 2, at("ps", 0, {"ps": ["A"]})),
    Case("workers with a gap", "without a gap", 2, at("worker", 1, {"worker": {"1": "A"}, "ps": ["B"]})),
    Case("an evaluator with nothing to follow", "follows the checkpoints in --logdir", 2, at("evaluator", 0)),
    Case("servers and lockstep", "multiworker has no parameter servers", 2, (CHIEF[0], ["--strategy=multiworker"])),
    Case("no servers", "strategy ps needs at least one ps", 2, (at("worker", 0, PEERS)[0], ["--strategy=ps"])),
    Case("one process in a cluster", "strategy one runs in one process", 2, (CHIEF[0], ["--strategy=one"])),
    Case("servers without workers", "--ps_hosts=A is given without --worker_hosts", 2, hosts("--ps_hosts=A")),
    Case("a job without hosts", "--job_name=ps is given without --worker_hosts", 2, hosts("--job_name=ps")),
    Case("hosts without a job", "which task is this?", 2, hosts("--ps_hosts=A", "--worker_hosts=B,C")),
    Case("which of two", "which --task_index is this one?", 2,
         hosts("--ps_hosts=A", "--worker_hosts=B,C", "--job_name=worker")),
    Case("a job without servers", "unknown --job_name=ps", 2, hosts("--worker_hosts=B,C", "--job_name=ps")),
    Case("a time limit that is none", "--start_timeout", 2, hosts("--start_timeout=-1")),
    Case("one in the environment", "TF2DIST_START_TIMEOUT is 'soon'", 2, at("ps", 0, TF2DIST_START_TIMEOUT="soon")),
    Case("Vertex AI", "CLUSTER_SPEC is not JSON", 2, ({"CLUSTER_SPEC": "x"}, [])),
    Case("SageMaker", "which is none of SM_HOSTS", 2, ({"SM_HOSTS": '["a", "b"]', "SM_CURRENT_HOST": "c"}, [])),
    Case("Slurm", "and 3 tasks in all", 2, (
        {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
         "SLURM_PROCID": "0"}, [])),
]  # fmt: skip


class Started:
    """A case under way, on ports of its own."""

    def __init__(self, case, directory, stack):
        self.case = case
        held = stack.enter_context(free_ports.hold(PORTS))
        self.places = {letter: f"127.0.0.1:{port}" for letter, port in zip("ABCD", held, strict=True)}
        self.directory = directory
        if case.stranger is not None:
            server = socket.create_server(("127.0.0.1", held[3]))
            stack.callback(server.close)
            threading.Thread(target=self._be_strange, args=(server, []), daemon=True).start()
        self.began = time.monotonic()
        self.processes = [self._start(*task) for task in (case.first, *case.others)]
        stack.callback(self._end)

    def _start(self, environ, flags):
        unset = ("TF_CONFIG", "CLUSTER_SPEC", "SM_", "SLURM_", "TF2DIST_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
        environ = {name: self.placed(value) for name, value in environ.items()}
        path = os.pathsep.join(filter(None, [environ.pop("PYTHONPATH", ""), str(ROOT), os.environ.get("PYTHONPATH")]))
        if "TF2DIST_START_TIMEOUT" not in environ:
            environ["TF2DIST_START_TIMEOUT"] = f"{self.case.limit:g}"
        return subprocess.Popen(
            [sys.executable, str(self.directory / "program.py"), *map(self.placed, flags)],
            env={**inherited, "PYTHONPATH": path, **environ}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def placed(self, text):
        text = text.replace("port D", f"port {self.places['D'].rpartition(':')[2]}")
        text = re.sub(r"\b[A-D]\b", lambda match: self.places[match[0]], text)
        return text.replace("VERSIONS", str(self.directory / "versions"))

    def _be_strange(self, server, kept):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.sendall(self.case.stranger)
                kept.append(connection)

    def _end(self):
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """All cases, by name."""
    directory = tmp_path_factory.mktemp("wrong")
    (directory / "program.py").write_text(PROGRAM)
    fake = directory / "versions" / "keras-0.1.dist-info"  # found before the one that is installed
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 0.1\n")
    with contextlib.ExitStack() as stack:
        yield {case.name: Started(case, directory, stack) for case in CASES}


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_a_wrong_start(started, name):
    found = started[name]
    out, err = found.processes[0].communicate(timeout=DEADLINE)
    assert found.processes[0].returncode == found.case.status, err
    assert (out, "Traceback" in err) == ("", False), err
    assert found.placed(found.case.said) in err.splitlines()[-1]


@pytest.mark.parametrize("name", [case.name for case in CASES if case.others])
def test_the_others_do_not_wait_for_ever(started, name):
    for process in started[name].processes[1:]:
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode in (1, 2), err
        assert "Traceback" not in err
