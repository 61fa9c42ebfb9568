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

import tf2dist
from tests.gpu_fakes import fake_nvidia_smi
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

    def start(order, shell="sh", python=sys.executable):
        command = ssh_connection.command(["ssh"], "host", python, 10.0)[-1]
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


def test_a_program_finds_the_library_of_a_clone_that_is_not_installed(far, tmp_path):
    """After what the user names in PYTHONPATH."""
    (tmp_path / "mine.py").write_text("import os, tf2dist; print(tf2dist.__file__, os.environ['PYTHONPATH'])")
    bare = f"{sys._base_executable} -S"  # without what is installed
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {bare} "$@"\n')
    python.chmod(0o755)
    process = far({"program": ["mine.py"], "env": {"PYTHONPATH": "/theirs"}}, python=str(python))
    out = process.stdout.read()
    assert process.wait(DEADLINE) == 0, process.stderr.read()
    root = os.path.dirname(os.path.dirname(tf2dist.__file__))
    assert out == f"{root}/tf2dist/__init__.py /theirs:{root}\n"


def test_the_status_of_a_task_is_known_where_the_ends_of_children_are_ignored(far, tmp_path):
    (tmp_path / "mine.py").write_text("import sys; sys.exit(3)")
    ignores = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{ignores}" {sys.executable} "$@"\n')
    python.chmod(0o755)
    process = far({"program": ["mine.py"], "env": {}}, python=str(python))
    process.stdout.read()
    assert process.wait(DEADLINE) == 3


def test_what_cannot_be_killed_is_left_behind():
    """As what waits for a file system that has died."""
    code = """
import subprocess
from tf2dist.launch.backends import ssh_remote_agent
from tf2dist.system import linux
child = subprocess.Popen(["sleep", "1000"])
kill, linux.kill = linux.kill, lambda pids, signum: None
ssh_remote_agent.LAST_GRACE = ssh_remote_agent.KILLED = 0.1
ssh_remote_agent.RemoteAgent._end_descendants(None)
print("left")
child.kill()
child.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def look(far, env=(), gpus=(), **order):
    """What a host says to the launcher that asks whether the script `mine` could run there."""
    gpus = {"tasks": [["worker", 0, "b"]], "host": "b", "each": None, "memory_mib": None, **dict(gpus)}
    order = {"check": "mark", "program": ["mine"], "ports": {}, "env": dict(env), "gpus": gpus, **order}
    out, error = far(order).communicate(timeout=DEADLINE)
    assert "\nmark " in out, error
    return json.loads(out.rpartition("mark ")[2])


def test_a_look(far, tmp_path):
    """The answer has a line of its own, though a login shell may have printed a banner without an end."""
    (tmp_path / "mine.py").touch()
    with socket.create_server(("", 0)) as server:
        ports = {"ps 0": server.getsockname()[1]}
        found = {}
        for name, order in (("fine", {"ports": {}}), ("taken", {"ports": ports})):
            found[name] = look(far, **order)["problem"]
    assert found["fine"] == ""
    assert found["taken"] == f"port {ports['ps 0']} of ps 0 cannot be used: address already in use; see --port"


def test_a_look_at_its_gpus(far, tmp_path, monkeypatch):
    """The host divides those that the tasks will see, among its own tasks; and says what is asked for in vain."""
    (tmp_path / "mine.py").touch()
    fake_nvidia_smi(tmp_path, monkeypatch, 2)
    tasks = [["chief", 0, "b"], ["worker", 0, "c"], ["worker", 1, "b"], ["worker", 2, "b"], ["ps", 0, "b"]]
    found = look(far, gpus={"tasks": tasks})["gpus"]
    seen = {task: variables["CUDA_VISIBLE_DEVICES"] for task, variables in found["variables"].items()}
    assert seen == {"chief 0": "-1", "worker 1": "0", "worker 2": "1", "ps 0": "-1"}
    found = look(far, env={"CUDA_VISIBLE_DEVICES": "1"}, gpus={"tasks": tasks})["gpus"]
    assert found["variables"]["worker 2"]["CUDA_VISIBLE_DEVICES"] == "1"
    found = look(far, env={"CUDA_VISIBLE_DEVICES": "2"})
    assert (
        found["problem"] == "CUDA_VISIBLE_DEVICES=2 names GPU '2', which this machine lacks: it has 2, numbers 0 to 1"
    )
    found = look(far, gpus={"each": 3})
    assert found["problem"].startswith("1 worker with 3 GPUs each need 3, and there are 2 GPUs (0, 1)")
    assert look(far, gpus={"memory_mib": 20000})["problem"].startswith(
        "--gpu_memory=20000 for 1 worker takes 20000 MiB"
    )


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


@pytest.mark.slow
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
