"""Jobs whose tasks are hosts in a network of their own: their addresses, links that are slow, cut, and taken over."""

import json
import os
import subprocess
import sys

import pytest

from tf2dist.launch import emulated_network, network_namespace

REFUSED = emulated_network.refusal()
needs_hosts = pytest.mark.skipif(bool(REFUSED), reason=f"no network of hosts here: {REFUSED}")
SLOW_LINK = "tbf rate 80mbit burst 32k latency 50ms"  # 10 MB/s
PEERS = """
import socket
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
"""


def test_addresses():
    numbers = [0, 1, 254, 255, 1000, 64999]
    assert [emulated_network.address(n) for n in numbers] == [
        "10.77.0.1", "10.77.0.2", "10.77.0.255", "10.77.1.0", "10.77.3.233", "10.77.253.232"
    ]  # fmt: skip


@pytest.mark.parametrize("link", ["", " ", "netem; rm -rf /", "netem delay $(id)", "pfifo\nlimit 9 'x'", "a " * 65])
def test_what_is_no_link(run, link):
    status, out, error = run("pass", f"--link={link}")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "is no queueing discipline of tc(8)" in error


@needs_hosts
def test_a_link_that_the_system_does_not_know(run):
    status, out, error = run("pass", "--link=nothing rate 1gbit")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "--link='nothing rate 1gbit' needs a network in which each task is a host, and there can be none" in error
    assert "tc qdisc add dev eth0 root nothing" in error


def test_where_there_can_be_no_hosts():
    code = """
import sys
from tf2dist.errors import UsageError
from tf2dist.launch import emulated_network, fault_plan
from tf2dist.launch.backends import local
emulated_network.refusal = lambda link: "operation not permitted"
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
    status, out, _ = run("pass", "--ps=1", "--workers=1", "--dry_run", "--chaos=cut:ps-0@1s")
    assert status == 0
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
    end = time.monotonic() + 6
    while time.monotonic() < end:
        peer.sendall(b"x")
        time.sleep(0.05)
"""


@needs_hosts
@pytest.mark.parametrize("who", ["worker-0", "worker-1"])
def test_a_link_that_is_cut(run, who):
    """For so long as was asked; no connection is lost."""
    status, out, error = run(PEERS + TALK, "--workers=2", f"--chaos=cut:{who}@2s+2s")
    assert status == 0, error
    assert 1.8 < float(out.split()[-1]) < 6  # the sender's kernel tries again later and later
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
        "import contextlib\n" + PEERS + REPLACED, "--ps=1", "--workers=1", "--chaos=cut:worker-0@2s+500s"
    )
    assert status == 0, error
    assert "two processes True" in out
    assert "worker 0 ended killed by SIGKILL; it is started again" in error


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
