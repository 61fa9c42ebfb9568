"""Jobs whose tasks are hosts in a network of their own: their addresses, links that are slow, cut, and taken over."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.launch.conftest import DEADLINE
from tf2dist.launch import emulated_network, network_namespace
from tf2dist.system import linux

needs_hosts = pytest.mark.usefixtures("hosts")
SLOW_LINK = "tbf rate 80mbit burst 32k latency 50ms"  # 10 MB/s
PEERS = """
import socket
from tf2dist.system.step_file import StepFile, Steps
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]

def address(name):
    job, index = name.split()
    host, port = cluster[job][int(index)].split(":")
    return host, int(port)

def listen():
    return socket.create_server(address(me))

def connect(name):
    while True:
        try:
            return socket.create_connection(address(name), timeout=20)
        except OSError:
            time.sleep(0.05)

def make_a_step():
    "The moment of the fault."
    StepFile(os.environ["TF2DIST_STEP_FILE"]).write(Steps(0, 1, 1))
"""


def test_addresses():
    found = [emulated_network.address(n) for n in (0, 1, 254, 255, 999)]
    assert found == ["10.77.0.1", "10.77.0.2", "10.77.0.255", "10.77.1.0", "10.77.3.232"]


@pytest.mark.parametrize("link", ["", " ", "netem; rm -rf /", "netem delay $(id)", "pfifo\nlimit 9 'x'", "a " * 65])
def test_what_is_no_link(run, link):
    status, out, error = run("pass", f"--link={link}")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "is no queueing discipline of tc(8)" in error


@needs_hosts
def test_a_link_that_the_system_does_not_know(run):
    status, out, error = run("pass", "--link=nothing rate 1gbit")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "--link='nothing rate 1gbit': there is no such link here: tc qdisc" in error
    assert "tc qdisc add dev eth0 root nothing" in error


def test_where_there_can_be_no_hosts():
    code = """
import sys
from tf2dist.errors import UsageError
from tf2dist.launch import emulated_network, fault_plan
from tf2dist.launch.backends import local
emulated_network.refusal = lambda link="": "operation not permitted"
faults = fault_plan.FaultPlan(fault_plan.parse("cut:worker-0@1s", ["worker 0"]))
try:
    local.run(["this"], preload=(), faults=faults)
except UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == (
        "--chaos: a task that is cut off needs a network in which each task is a host, and there can be none here: "
        "operation not permitted\n"
    )


def test_a_machine_without_iproute2(monkeypatch):
    monkeypatch.setattr(emulated_network, "_where", {"ip": "/sbin/ip"}.get)
    assert emulated_network.refusal("pfifo") == "tc (iproute2) is not installed"
    monkeypatch.setattr(emulated_network, "_where", {}.get)
    assert emulated_network.refusal() == "ip (iproute2) is not installed"


@needs_hosts
def test_each_task_is_a_host(start, tmp_path):
    """With an address of its own; nothing of it is seen outside, or left."""
    before = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    job = start(
        PEERS
        + """
if me == "worker 0":
    server = listen()
    peer, (host, _) = server.accept()
    print("from", host, "to", address(me)[0], [name for _, name in socket.if_nameindex()], flush=True)
    peer.recv(1)
else:
    peer = connect("worker 0")
    wait_for("looked")
""",
        "--workers=2",
        "--link=pfifo limit 1000",
    )
    assert "from 10.77.0.2 to 10.77.0.1 ['lo', 'eth0']" in job.until("eth0']")
    assert subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout == before
    (tmp_path / "looked").touch()
    assert job.finish()[0] == 0
    assert job.all_gone()


@needs_hosts
def test_a_dry_run_shows_addresses(run):
    status, out, error = run("pass", "--ps=1", "--workers=1", "--dry_run", "--chaos=cut:ps-0@1s")
    assert status == 0
    assert "addresses are those of hosts that a run makes" in error
    config = json.loads(out.splitlines()[0].partition("TF_CONFIG='")[2].partition("'")[0])
    assert config["cluster"] == {
        "chief": ["10.77.0.1:2222"], "worker": ["10.77.0.2:2222"], "ps": ["10.77.0.3:2222"]
    }  # fmt: skip


TALK = """
if me == "worker 0":
    peer, _ = listen().accept()
    peer.settimeout(0.2)
    longest, data, last = 0.0, b"x", time.monotonic()
    while data:
        try:
            data = peer.recv(1 << 16)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        except TimeoutError:
            pass
    print("silent for", longest, flush=True)
else:
    peer = connect("worker 0")
    peer.sendall(b"x")
    make_a_step()
    end = time.monotonic() + 14
    while time.monotonic() < end:
        peer.sendall(b"x")
        time.sleep(0.05)
"""


@needs_hosts
@pytest.mark.parametrize("who", ["worker-0", "worker-1"])
def test_a_link_that_is_cut(run, who):
    """For so long as was asked; no connection is lost."""
    status, out, error = run(PEERS + TALK, "--workers=2", f"--chaos=cut:{who}@step1+2s")
    assert status == 0, error
    assert 1.8 < float(out.split()[-1]) < 13  # the sender's kernel tries again later and later
    assert f"launch: chaos: cut {who.replace('-', ' ')} for 2 s, at " in error
    assert f"launch: chaos: {who.replace('-', ' ')} is on the network again, at " in error


FLOOD = """
import select
size = 10_000_000
if me == "worker 0":
    server = listen()
    peers = [server.accept()[0] for _ in range(2)]
    began, left = time.monotonic(), 2 * size
    while left:
        for peer in select.select(peers, [], [])[0]:
            left -= len(peer.recv(1 << 20))
    print("seconds", time.monotonic() - began, flush=True)
else:
    connect("worker 0").sendall(bytes(size))
"""


@needs_hosts
@pytest.mark.slow
def test_a_slow_link(run):
    """Also where two send to one."""
    status, out, error = run(PEERS + FLOOD, "--workers=3", f"--link={SLOW_LINK}")
    assert status == 0, error
    assert float(out.split()[-1]) > 1.8  # 20 MB through a link of 10 MB/s


REPLACED = """
if me == "worker 0":
    server, pid = listen(), str(os.getpid()).encode()
    server.settimeout(0.1)
    while True:
        with contextlib.suppress(TimeoutError):
            server.accept()[0].sendall(pid)
        if (here / "die").exists() and not (here / "died").exists():
            (here / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
elif me == "chief 0":
    pid = lambda: connect("worker 0").recv(100)
    first = pid()
    make_a_step()
    try:
        while True:
            socket.create_connection(address("worker 0"), timeout=2).close()
    except TimeoutError:
        (here / "die").touch()
    print("two processes", pid() != first, flush=True)
    os._exit(0)
"""


@needs_hosts
def test_a_task_that_is_started_again_has_the_address(run):
    """And is on the network, although the one before was cut off when it died."""
    status, out, error = run(
        "import contextlib\n" + PEERS + REPLACED, "--ps=1", "--workers=1", "--chaos=cut:worker-0@step1+500s"
    )
    assert status == 0, error
    assert "two processes True" in out
    assert "worker 0 ended killed by SIGKILL; it is started again" in error
    assert "chaos: worker 0 has ended; cut is over for the one that takes its place" in error


STUCK = """
if me == "worker 0":
    if not (here / "died").exists():
        peer = connect("ps 0")
        peer.settimeout(1)
        try:
            while True:
                peer.sendall(bytes(1 << 20))  # more and more, which nobody takes
        except TimeoutError:
            (here / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    listen().accept()[0].sendall(b"back")
elif me == "ps 0":
    peer = listen().accept()
    wait_for("reached")
else:
    wait_for("died")
    print(connect("worker 0").recv(100), flush=True)
    (here / "reached").touch()
"""


@needs_hosts
def test_what_is_left_to_send_of_a_task_before_does_not_disturb(run):
    """The kernel goes on with its connection, from the same address, for as long as it is not told otherwise."""
    status, out, error = run(PEERS + STUCK, "--ps=1", "--workers=1", "--link=pfifo limit 1000")
    assert status == 0, error
    assert "b'back'" in out


@needs_hosts
@pytest.mark.parametrize("asked", ["cut:worker-1@step1+500s", "none"])
def test_the_end_of_what_starts_the_processes(start, tmp_path, asked):
    """Also while one is cut off: it is said, and a report is written."""
    report = tmp_path / "report.json"
    code = "if me == 'worker 0': make_a_step()\nprint('runs', flush=True)\ntime.sleep(500)"
    job = start(PEERS + code, "--workers=2", "--link=pfifo limit 9", f"--chaos={asked}", f"--chaos_report={report}")
    job.until("runs", 2)
    told = b""
    while asked != "none" and b"chaos: cut worker 1" not in told:
        told += os.read(job.process.stderr.fileno(), 4096)
    os.kill(job.helper(), signal.SIGKILL)
    status, _, error = job.finish()
    assert status == 1
    assert "Traceback" not in error
    assert "that had started worker 0, worker 1 failed" in error
    assert len(json.loads(report.read_text())["faults"]) == (asked != "none")


@needs_hosts
def test_a_signal_to_all_processes_while_hosts_are_made(start, tmp_path):
    """It reaches the commands that make them, and the job saves all the same."""
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "ip"
    slow.write_text(f"""#!/bin/bash
commands=$(cat)  # (sh would let all signals through)
case $commands in *"add port2 "*)
    touch {tmp_path}/waits
    while [ ! -e {tmp_path}/signalled ]; do sleep 0.05; done
esac
exec {emulated_network._where("ip")} "$@" <<< "$commands"
""")
    slow.chmod(0o755)
    code = "signal.signal(signal.SIGTERM, lambda *_: os._exit(75))\nprint('runs', flush=True)\ntime.sleep(500)"
    env = {"PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"}
    job = start(code, "--workers=2", "--link=pfifo limit 9", env=env)
    job.until("runs")
    deadline = time.monotonic() + DEADLINE
    while not (tmp_path / "waits").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    linux.kill(job.left(), signal.SIGTERM)
    (tmp_path / "signalled").touch()
    status, _, error = job.finish()
    assert status == 75, error
    assert job.all_gone()


def test_more_tasks_than_a_network_has_room_for(run):
    status, _, error = run("pass", "--workers=1001", "--link=pfifo")
    assert (status, error.count("\n")) == (2, 1)
    assert "a network has room for 1000 tasks, found 1001" in error


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_user_without_rights(tmp_path):
    """In a user namespace, where commands have no rights that they are not given."""
    code = """
import ctypes, os, sys
sys.path[:0] = [sys.argv[1]]
from tf2dist.launch import emulated_network
os.setgid(1234), os.setuid(1234)  # who may not read what is imported
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as for a program that such a user starts
print(emulated_network.refusal("pfifo"))
"""
    root = os.path.dirname(os.path.dirname(os.path.dirname(emulated_network.__file__)))
    if network_namespace.refusal() or subprocess.run(["unshare", "-U", "true"], check=False).returncode:
        pytest.skip("no user namespaces here")
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
