"""The far end of `launch ssh`, started as ssh would start it, but without ssh."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from tf2dist.errors import UsageError
from tf2dist.launch import hostfile
from tf2dist.launch.backends import ssh_connection

pytestmark = pytest.mark.timeout(60)
DEADLINE = 40.0


@pytest.fixture
def far(tmp_path, monkeypatch):
    """far(order, shell=...): what a login shell on a host makes of the command, its home a directory of the user's."""
    started = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (tmp_path / "launch.py").write_text("raise SystemExit('not this one')")  # something else of that name

    def start(order, shell="sh"):
        command = ssh_connection.command(["ssh"], "host", sys.executable, 10.0)[-1]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(
                [shell, "-c", command], cwd=tmp_path, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
            )
        )
        started[-1].stdin.write(json.dumps({"directory": str(tmp_path), "grace": 2.0, "port": None, **order}) + "\n")
        started[-1].stdin.flush()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def test_a_directory_that_cannot_be_entered(far, tmp_path):
    """Nothing runs elsewhere, where a log of its would be another one."""
    gone = str(tmp_path / "gone")
    process = far({"directory": gone, "program": ["json.tool"], "env": {}})
    assert process.wait(DEADLINE) == 1
    assert process.stderr.read() == f"launch: {socket.gethostname()} cannot go to {gone}: No such file or directory\n"


@pytest.mark.parametrize("shell", [*filter(shutil.which, ["sh", "bash", "zsh", "fish", "tcsh"])])
def test_any_login_shell(far, tmp_path, shell):
    """Words arrive as they are: quotes, spaces, line ends; and the program may be a module of the user's directory."""
    (tmp_path / "mine.py").write_text("import os, sys; print(sys.argv[1:], os.environ['ODD']); sys.exit(3)")
    words = ["a b", "it's", '"', "$HOME", "two\nlines", "*", "!1", "\\"]
    odd = "x" * 100_000 + "\nit's"
    process = far({"program": ["mine", *words], "env": {"ODD": odd}}, shell)
    out = process.stdout.read()  # and its input stays open: the end of that would end the task
    assert (process.wait(DEADLINE), out, process.stderr.read()) == (3, f"{words} {odd}\n", "")


def test_a_look(far, tmp_path):
    """The answer has a line of its own, though a login shell may have printed a banner without an end."""
    (tmp_path / "mine.py").touch()
    with socket.create_server(("", 0)) as server:
        ports = {"ps 0": server.getsockname()[1]}
        found = {}
        for name, order in (("fine", {"ports": {}}), ("taken", {"ports": ports})):
            out, _ = far({"check": "mark", "program": ["mine"], **order}).communicate(timeout=DEADLINE)
            assert "\nmark " in out
            found[name] = json.loads(out.rpartition("mark ")[2])["problem"]
    assert found["fine"] == ""
    assert found["taken"] == f"port {ports['ps 0']} of ps 0 cannot be used: address already in use; see --port"


def test_a_task_waits_for_the_port_of_the_one_whose_place_it_takes(far, tmp_path):
    (tmp_path / "mine.py").write_text("print('runs')")
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        process = far({"program": ["mine"], "env": {}, "port": port})
        assert process.stderr.readline() == f"waits for port {port}, which is still in use\n"
        assert process.poll() is None
    assert process.stdout.readline() == "runs\n"
    assert process.wait(DEADLINE) == 0


@pytest.mark.parametrize("how", ["end", "connection"])
def test_who_waits_for_a_port_can_be_ended(far, tmp_path, how):
    (tmp_path / "mine.py").write_text("print('runs')")
    with socket.create_server(("", 0)) as server:
        process = far({"program": ["mine"], "env": {}, "port": server.getsockname()[1]})
        process.stderr.readline()
        process.stdin.write("end\n" if how == "end" else "")
        process.stdin.flush() if how == "end" else process.stdin.close()
        assert process.wait(DEADLINE) == 143
        assert process.stdout.read() == ""


def catches(pid, signum):
    """Has the process a handler for the signal?"""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)[1], 16) >> (signum - 1) & 1


def test_an_end_that_comes_while_the_order_is_written():
    """It must not land in the middle of the order, which waits until ssh has connected."""
    ssh = "import sys, time; time.sleep(2); print([sys.stdin.readline(), sys.stdin.readline()])"
    order = {
        "host": "b",
        "delay": 0,
        "command": [sys.executable, "-c", ssh],
        "agent": "x" * 100_000,
    }  # more than a pipe
    process = subprocess.Popen(
        [sys.executable, "-m", "tf2dist.launch.backends.ssh_connection"],
        env={**os.environ, ssh_connection.ORDER: json.dumps(order)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not catches(process.pid, signal.SIGTERM):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=DEADLINE)
    assert out == f"{[json.dumps(order['agent']) + chr(10), 'end' + chr(10)]}\n"


def test_how_ssh_takes_hosts():
    """An option is no host, and IPv6 addresses have no brackets there."""
    assert ssh_connection.command(["ssh"], "me@[fd00::1]", "python", 1.0)[-2] == "me@fd00::1"
    for name in ("-oProxyCommand=touch me", "-oProxyCommand=x@b", "-b"):
        with pytest.raises(UsageError, match="names no host"):
            hostfile.parse_hosts(name)
