"""python -m tf2dist.doctor, as a program and by its parts."""

import contextlib
import io
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from tf2dist import doctor
from tf2dist.cluster import open_ports
from tf2dist.launch import free_ports


def run(*arguments, **env):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TF_CONFIG", "CLUSTER_SPEC", "SLURM", "SM_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tf2dist.doctor", *arguments],
        env={**inherited, **env}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_alone():
    status, out, err = run()
    assert (status, err) == (0, "")
    assert "cluster    none" in out
    assert "device     CPU:0" in out


@pytest.mark.slow
def test_a_cluster_with_peers_of_every_kind():
    with socket.create_server(("127.0.0.1", 0)) as there, free_ports.hold(1) as (gone,):
        here = there.getsockname()[1]
        workers = [f"127.0.0.1:{here}", "nowhere.invalid:1"]
        cluster = {"master": ["127.0.0.1:1"], "worker": workers, "ps": [f"127.0.0.1:{gone}"]}
        config = {"cluster": cluster, "task": {"type": "ps", "index": "0"}}
        status, out, err = run("--json", TF_CONFIG=json.dumps(config))
    assert (status, err) == (1, "")
    report = json.loads(out)
    assert report["cluster"]["task"] == "ps 0"
    assert report["cluster"]["role"] == "server"
    assert report["cluster"]["leader"] == "chief 0"
    assert len(report["cluster"]["notes"]) == 2
    assert [(p["task"], p["reached"]) for p in report["peers"]] == [
        ("chief 0", True), ("worker 0", True), ("worker 1", False),
    ]  # fmt: skip
    [problem] = report["problems"]
    assert problem == "worker 1 at nowhere.invalid:1: no such host"
    assert report["devices"][0]["type"] == "CPU"
    assert set(report["versions"]) == {"tensorflow", "keras", "python"}


def test_a_cluster_that_cannot_be(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}')
    monkeypatch.setattr(doctor, "_devices", lambda problems: [])
    report = doctor.examine(1.0)
    assert report["cluster"] is None
    assert "'a'" in report["problems"][0]
    said = "\n".join(doctor.lines(report))
    assert "cluster    described wrongly" in said
    assert "this process is alone" not in said


CLUSTER = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}
HERE = {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    ("environ", "source", "task", "role"),
    [
        ({"TF_CONFIG": {"cluster": CLUSTER, "task": {"type": "ps", "index": 0}, "environment": "cloud"}},
         "TF_CONFIG", "ps 0", "server"),
        ({"TF_CONFIG": {"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}, "environment": "cloud"}},
         "TF_CONFIG", "evaluator 0", "evaluator"),
        ({"CLUSTER_SPEC": {"cluster": {"workerpool0": ["127.0.0.1:1"], "workerpool1": ["127.0.0.1:2"]},
                           "environment": "cloud", "task": {"type": "workerpool1", "index": 0}}},
         "CLUSTER_SPEC", "worker 0", "peer"),
        ({"SM_HOSTS": ["127.0.0.1", "127.0.0.2"], "SM_CURRENT_HOST": "127.0.0.2"}, "SM_HOSTS", "worker 1", "peer"),
        ({**HERE, "SLURM_PROCID": "1", "SLURM_JOB_ID": "7"}, "SLURM_STEP_NODELIST", "worker 1", "peer"),
    ],
    ids=["tfjob", "tfjob's evaluator", "vertex", "sagemaker", "slurm"],
)  # fmt: skip
def test_what_each_platform_says(monkeypatch, capsys, environ, source, task, role):
    for name, value in environ.items():
        monkeypatch.setenv(name, value if isinstance(value, str) else json.dumps(value))
    monkeypatch.setattr(doctor, "_devices", lambda problems: [])
    doctor.main(["--json"])
    cluster = json.loads(capsys.readouterr().out)["cluster"]
    assert (cluster["source"], cluster["task"], cluster["role"]) == (source, task, role)


@pytest.mark.parametrize("text", ["\udcff", "\x1b[2J", '{"cluster": \udcff}'])
def test_what_is_no_text_is_shown_all_the_same(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    monkeypatch.setattr(doctor, "_devices", lambda problems: [])
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", out)
    assert doctor.main([]) == 1
    assert doctor.main(["--json"]) == 1
    out.flush()
    said = out.buffer.getvalue().decode()
    assert "problem    TF_CONFIG is not JSON" in said
    assert "\x1b" not in said
    assert json.loads(said[said.index("{\n") :])["problems"]


@pytest.mark.parametrize("same", [True, False])
def test_in_a_task_that_runs_already(monkeypatch, same):
    """As in `kubectl exec POD -- python -m tf2dist.doctor`: its port is in use, and that is right."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = json.dumps({"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": {"type": "worker", "index": 0}})
        monkeypatch.setenv("TF_CONFIG", config)
        env = {**os.environ, "TF_CONFIG": config if same else config + " "}
        with subprocess.Popen(["sleep", "100"], env=env) as task:
            while not pathlib.Path(f"/proc/{task.pid}/environ").read_bytes():  # its program is being loaded
                time.sleep(0.01)
            monkeypatch.setattr(doctor, "open_to_others", lambda: [open_ports.Listener(task.pid, "sleep", port)])
            monkeypatch.setattr(doctor, "_devices", lambda problems: [])
            report = doctor.examine(1.0)
            task.kill()
    if same:
        assert report["problems"] == []
        assert report["cluster"]["notes"] == [f"this task runs already: sleep (pid {task.pid})"]
    else:
        assert f"port {port} of worker 0" in report["problems"][0]


def test_peers_that_do_not_answer(monkeypatch):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(8):  # the queue of those that wait to be accepted is full: nobody answers any more
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        cluster = {"worker": [f"127.0.0.1:{full.getsockname()[1]}"], "chief": ["127.0.0.1:1"]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}}))
        monkeypatch.setattr(doctor, "_devices", lambda problems: [])
        [peer, _] = doctor.examine(0.2)["peers"]
    assert not peer["reached"]
    assert "no answer in 0.2 s" in peer["answer"]


def test_a_wrong_time_limit(capsys):
    assert doctor.main(["--timeout=0"]) == 2
    assert "--timeout=0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "open_"),
    [("127.0.0.1", False), ("0.0.0.0", True), ("::", True), ("::1", False)],
)
def test_ports_that_others_can_reach(tf, host, open_):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"no {host} here: {error}")
    with server:
        found = [(at.pid, at.port) for at in open_ports.open_to_others()]
        assert ((os.getpid(), server.getsockname()[1]) in found) is open_


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("0100007F", True),
        ("0000000000000000FFFF00000100007F", True),  # ::ffff:127.0.0.1, as Java listens
        ("0000000000000000FFFF00000101A8C0", False),
        ("00000000000000000000000001000000", True),
        ("0101A8C0", False),
        ("0000007E", False),
    ],
)
def test_loopback_addresses(address, loopback):
    assert open_ports._is_loopback(address) is loopback
