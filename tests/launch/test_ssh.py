"""`python -m launch ssh` with a real sshd on three hosts with addresses of their own."""

import contextlib
import json
import os
import pathlib
import signal
import sys

import pytest

from tests.conftest import sampled
from tests.gpu_fakes import fake_nvidia_smi
from tests.launch.hosts import Hosts, Launcher, possible
from tests.threads import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MNIST = ("trainers.mnist", "--dataset=digits")
STEPS = 12  # of an epoch
SLEEP = """
import os, signal, subprocess, sys, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)  # a daemon, which the task leaves behind
print("runs", os.getcwd(), os.environ.get("COLOUR"), flush=True)
if "ignore" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(1000)
"""

HELD = """
import os, runpy, time, keras, tf2dist
class Held(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        while epoch == 15 and not os.path.exists("go on"):
            time.sleep(0.05)
fit = tf2dist.fit
tf2dist.fit = lambda *args, callbacks, **kwargs: fit(*args, callbacks=[*callbacks, Held()], **kwargs)
runpy.run_module("trainers.mnist", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    if why := possible():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        hosts = Hosts(tmp_path_factory.mktemp("hosts"), "abc", stack)
        hosts.serve_ssh()
        yield hosts


@pytest.fixture
def ssh(hosts, tmp_path):
    """ssh(*arguments): starts `python -m launch ssh` on host a; afterwards nothing may be left on any host."""
    (tmp_path / "sleep.py").write_text(SLEEP)
    started = []

    def start(*arguments, config="ssh_config", env=()):
        started.append(
            Launcher(hosts, "a", ["ssh", f"--ssh=ssh -F {hosts.directory / config}", *arguments], tmp_path, env)
        )
        return started[-1]

    yield start
    for launcher in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.process.pid, signal.SIGKILL)
        launcher.process.wait()
        launcher.out.close()
    assert hosts.empty()


def trained(launcher, report):
    status, out = launcher.finish()
    assert status == 0, out
    assert json.loads(report.read_text())["test_accuracy"] > 0.9, out
    return json.loads(report.read_text())


def test_mnist_on_parameter_servers(ssh, hosts, tmp_path):
    report = tmp_path / "report.json"
    launcher = ssh("--hosts=b,c", "--ps=1", "--", *MNIST, "--epochs=10", f"--report={report}")
    assert trained(launcher, report)["processes"] == {"chief": 1, "worker": 2, "ps": 1}
    assert hosts.empty(within=10.0)


@pytest.mark.exhaustive
def test_mnist_on_workers_in_lockstep(ssh, hosts, tmp_path):
    report = tmp_path / "report.json"
    launcher = ssh("--hosts=b,c", "--", *MNIST, "--strategy=multiworker", "--epochs=10", f"--report={report}")
    assert trained(launcher, report)["processes"] == {"worker": 2}


@pytest.mark.exhaustive
def test_hosts_by_their_ipv6_addresses(ssh, hosts, tmp_path):
    report = tmp_path / "report.json"
    launcher = ssh("--hosts=root@[fd77::2],[fd77::3]", "--ps=1", "--", *MNIST, "--epochs=10", f"--report={report}")
    assert trained(launcher, report)["processes"] == {"chief": 1, "worker": 2, "ps": 1}


def test_directory_environment_and_names_are_handed_on(ssh, hosts, tmp_path):
    launcher = ssh("--hosts=b,c:2", "--env=COLOUR", "--", "sleep.py", env={"COLOUR": "blue"})
    launcher.until(f"runs {tmp_path} blue", 3)
    for number in range(3):
        launcher.until(f"[worker {number}] runs")
    assert {name: len([c for c in hosts.processes(name).values() if "sleep.py" in c]) for name in "bc"} == {
        "b": 1,
        "c": 2,
    }
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.finish(30)[0] == 143


def test_hosts_divide_their_gpus(ssh, tmp_path, monkeypatch):
    """Each its own, among its own workers; and nothing starts where some would have more than others."""
    fake_nvidia_smi(tmp_path, monkeypatch, 2)
    python = tmp_path / "python"
    seen = f"PATH={tmp_path}:$PATH PYTHONPATH={tmp_path / 'wheels'}"  # on the hosts
    python.write_text(f'#!/bin/sh\n{seen} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "sees.py").write_text("import os\nprint('sees', os.environ['CUDA_VISIBLE_DEVICES'])")
    status, out = ssh(f"--python={python}", "--hosts=b:2,c:2", "--", "sees.py").finish(60)
    sees = sorted(line for line in out.splitlines() if "sees" in line)  # a login shell may print what it likes
    assert (status, sees) == (0, [f"[worker {n}] sees {n % 2}" for n in range(4)])
    status, out = ssh(f"--python={python}", "--hosts=b:2,c", "--", "sees.py").finish(60)
    unequal = "a worker on c has 2 GPUs and one on b has 1, and all must have as many: say --gpus_per_worker=1"
    assert (status, out) == (2, f"launch: ssh: {unequal}\n")
    status, out = ssh(f"--python={python}", "--hosts=b,c", "--gpus_per_worker=3", "--", "sees.py").finish(60)
    assert (status, out.count("\n")) == (2, 1)
    assert "b: 1 worker with 3 GPUs each need 3" in out
    assert "c: 1 worker with 3 GPUs each need 3" in out


@pytest.mark.parametrize("how", sampled(["once", "twice", "ignored"], (), ("once", "ignored")))
def test_an_interrupt_ends_everything_everywhere(ssh, hosts, how):
    launcher = ssh("--hosts=b,c", "--grace=4", "--", "sleep.py", *["ignore"] * (how != "once"))
    launcher.until("runs", 2)
    os.killpg(launcher.process.pid, signal.SIGINT)  # as a terminal does
    if how == "twice":
        launcher.until("ending")
        os.killpg(launcher.process.pid, signal.SIGINT)
    status, out = launcher.finish(30)
    assert status == 130, out
    assert hosts.empty(within=10.0)


def test_nothing_is_left_when_the_launcher_is_killed(ssh, hosts):
    launcher = ssh("--hosts=b,c", "--", "sleep.py", "ignore")
    launcher.until("runs", 2)
    launcher.process.kill()
    assert hosts.empty(within=20.0)


def test_a_failure_on_one_host_ends_the_others(ssh, hosts, tmp_path):
    (tmp_path / "fail.py").write_text(
        "import os, time\n"
        "time.sleep(2 if '\"index\": 1' in os.environ['TF_CONFIG'] else 1000)\n"
        "print('bad luck')\n"
        "exit(7)\n"
    )
    status, out = ssh("--hosts=b,c", "--", "fail.py").finish()
    assert status == 7
    assert "worker 1" in out
    assert "bad luck" in out
    assert hosts.empty(within=10.0)


def test_a_host_that_is_cut_off_in_the_middle_is_named(ssh, hosts, tmp_path):
    launcher = ssh("--hosts=b,c", "--", *MNIST, "--strategy=multiworker", "--epochs=100000", f"--logdir={tmp_path}/log")
    launcher.until("epoch 2/")
    with hosts.cut_off("c"):
        status, out = launcher.finish(120)
        assert status == 1
        assert "worker 1" in out
        assert hosts.empty("a", "b", within=20.0)
        # The far end notices by itself. That sshd still waits for what it has sent to arrive is for sshd to say.
        assert hosts.empty("c", within=60.0, but="sshd:")


def test_peers_go_on_without_a_host_that_is_cut_off(ssh, hosts, tmp_path):
    """And with it again when it answers at the next start; from a directory that all hosts see."""
    report = tmp_path / "report.json"
    (tmp_path / "held.py").write_text(HELD)
    program = ["held.py", "--dataset=digits", "--strategy=multiworker", "--epochs=20", f"--report={report}"]
    options = ["--hosts=b,c", "--workers=1:2", "--connect_timeout=2"]
    launcher = ssh(*options, "--", *program, f"--logdir={tmp_path}/log")
    launcher.until("epoch 15/")  # where it is held
    with hosts.cut_off("c"):
        launcher.until("launch: c: ssh: connect to host c port 22: ")
        launcher.until("launch: the job has 1 of 2 workers")
        (tmp_path / "go on").touch()
        found = trained(launcher, report)
        assert hosts.empty("c", within=60.0, but="sshd:")
        assert found["steps"] == 20 * STEPS
        assert launcher.text().count("the job is started again (2 more to go)") == 1
        # From the start, too.
        report.unlink()
        assert trained(ssh(*options, "--", *program), report)["steps"] == 20 * STEPS
        status, out = ssh("--hosts=c,b", "--workers=2:2", "--connect_timeout=2", "--", *program).finish()
        assert status == 2
        assert "nothing was started" in out


def test_a_worker_that_is_cut_off_is_done_without(ssh, hosts, tmp_path):
    """Epochs end without it at once; the training is held until it is lost."""
    report = tmp_path / "report.json"
    (tmp_path / "held.py").write_text(HELD)
    arguments = ["--dataset=digits", "--strategy=ps", "--epochs=30", f"--report={report}"]
    launcher = ssh("--hosts=b,c", "--ps=1", "--", "held.py", *arguments)
    launcher.until("epoch 2/")
    with hosts.cut_off("c"):
        launcher.until("epoch 15/")
        assert "no sign of life" not in launcher.text()
        launcher.until("worker 1 at c:2222 has given no sign of life for 60 s; the job goes on without it")
        (tmp_path / "go on").touch()
        found = trained(launcher, report)
        assert hosts.empty("c", within=60.0, but="sshd:")
    assert found["steps"] == 30 * STEPS
    assert launcher.text().count("launch: worker 1 was lost with its host; the job goes on without it") == 1


@pytest.mark.exhaustive
def test_who_cannot_be_done_without_is_named_when_cut_off(ssh, hosts, tmp_path):
    """Three jobs: of one the only worker, of one the server, of one the coordinator is on the host that is cut."""
    said = {
        "worker": "worker 0 at c:3000 has given no sign of life for 60 s",
        "ps": "launch: ps 0 (pid ",
        "chief": "launch: chief 0 (pid ",
    }
    jobs = {}
    for port, away in zip((3000, 3010, 3020), said, strict=True):
        layout = tmp_path / f"{away}.toml"
        layout.write_text("".join(f'{job} = ["{"c" if job == away else "b"}"]\n' for job in said))
        options = f"--cluster={layout}", f"--port={port}", "--env=TF2DIST_WORKERS_GRACE=5"
        jobs[away] = ssh(*options, "--", *MNIST, "--epochs=100000")
    for launcher in jobs.values():
        launcher.until("epoch 2/")
    with hosts.cut_off("c"):
        for away, launcher in jobs.items():
            status, out = launcher.finish(120)
            assert status == 1, out
            last = out[out.rindex("launch: ") :]
            assert said[away] in last, out
            assert ("the connection to c failed or was lost" in last) == (away != "worker"), out
        assert hosts.empty("a", "b", within=20.0)
        assert hosts.empty("c", within=60.0, but="sshd:")


def kill_task(hosts, name):
    """Kills the task on a host, not its agent."""
    [pid] = [
        pid
        for pid, c in hosts.processes(name).items()
        if ("trainers.mnist" in c or "held.py" in c) and "ssh_remote_agent" not in c
    ]
    os.kill(pid, signal.SIGKILL)


def test_a_worker_that_was_killed_is_started_again_on_its_host(ssh, hosts, tmp_path):
    """The training is held until both are back: on a fast machine it would be over before."""
    report = tmp_path / "report.json"
    (tmp_path / "held.py").write_text(HELD)
    arguments = ["--dataset=digits", "--strategy=ps", "--epochs=20", f"--report={report}"]
    launcher = ssh("--hosts=b,c", "--ps=1", "--max_restarts=2", "--", "held.py", *arguments)
    for times in (1, 2):
        launcher.until(f"epoch {5 * times}/")
        if times == 1:
            kill_task(hosts, "c")
        else:  # its connection: the old one is still being ended when the new one comes
            [pid] = [pid for pid, c in hosts.processes("a").items() if c.startswith("ssh ") and " c exec " in c]
            os.kill(pid, signal.SIGKILL)
        launcher.until("worker 1 at c:2222 is back", times)
    (tmp_path / "go on").touch()
    assert trained(launcher, report)["steps"] == 20 * STEPS
    assert launcher.text().count("launch: worker 1 ended with status 137; it is started again") == 2


@pytest.mark.exhaustive
def test_peers_are_started_again_on_their_hosts(ssh, hosts, tmp_path):
    """They go on from their last checkpoint, which is written every 1000 updates."""
    report, logdir = tmp_path / "report.json", tmp_path / "log"
    arguments = ["--strategy=multiworker", "--epochs=120", f"--logdir={logdir}", f"--report={report}"]
    launcher = ssh("--hosts=b,c", "--max_restarts=1", "--", *MNIST, *arguments)
    launcher.until("epoch 90/")
    kill_task(hosts, "c")
    assert trained(launcher, report)["steps"] == 120 * STEPS
    out = launcher.text()
    assert out.count("launch: the job is started again (0 more to go)") == 1
    again = out[out.index("the job is started again") :]
    assert "epoch 120/120" in again
    assert "epoch 80/120" not in again
    assert "went on from a checkpoint" in again


@pytest.mark.parametrize(
    ("arguments", "config", "said"),
    [
        (["--hosts=b,nowhere"], "ssh_config", ["nowhere: ", "resolve"]),
        (["--hosts=b,10.77.0.99", "--connect_timeout=3"], "ssh_config", ["10.77.0.99: "]),
        (["--hosts=b,c"], "stranger", ["b: ", "c: ", "Permission denied"]),
        (["--hosts=b,c", "--directory=/nowhere"], "ssh_config", ["no directory /nowhere"]),
        (["--hosts=b,c", "--python=/nowhere/python"], "ssh_config", ["/nowhere/python", "--python"]),
        (["--hosts=b,c", "--port=22"], "ssh_config", ["port 22 of worker 0 cannot be used"]),
        (["--hosts=localhost,c"], "ssh_config", ["localhost is another machine on each host"]),
        (["--hosts=b", "--ssh=ssh 'b"], "ssh_config", ["--ssh=ssh 'b cannot be read: no closing quotation"]),
    ],
)
def test_nothing_starts_anywhere_when_one_host_is_wrong(ssh, hosts, arguments, config, said):
    launcher = ssh(*arguments, "--", "sleep.py", config=config)
    status, out = launcher.finish(30)
    assert status == 2, out
    assert out.count("\n") == 1
    assert "runs" not in out
    for text in said:
        assert text in out


def test_a_host_that_accepts_and_says_nothing(ssh, hosts):
    listens = pathlib.Path(hosts.directory, "mute_listens")
    code = f"""
import pathlib, socket, time
s = socket.create_server(('', 2201))
pathlib.Path({str(listens)!r}).touch()
time.sleep(1000)
"""
    mute = hosts.on("c", [sys.executable, "-c", code])
    try:
        wait_until(listens.exists)
        options = f"--ssh=ssh -p 2201 -F {hosts.directory}/ssh_config"
        status, out = ssh(options, "--hosts=b,c", "--connect_timeout=2", "--", "sleep.py").finish(60)
    finally:
        mute.kill()
        mute.wait()
    assert (status, out.count("\n")) == (2, 1)
    assert "b: ssh: connect to host b port 2201: Connection refused" in out
    assert "c: Connection timed out" in out or "c: it did not answer" in out, out


def test_more_tasks_on_a_host_than_sshd_takes_at_once(ssh, hosts):
    launcher = ssh("--hosts=b:18", "--", "sleep.py")
    launcher.until("runs", 18)
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.finish(60)[0] == 130


def test_a_program_that_is_not_there(ssh):
    status, out = ssh("--hosts=b,c", "--", "no_such.py").finish(30)
    assert (status, out.count("\n")) == (2, 1)
    assert "no script 'no_such.py'" in out


def test_a_dry_run_reaches_nobody(ssh):
    status, out = ssh("--hosts=b,nowhere", "--ps=1", "--dry_run", "--", "sleep.py", "two words").finish(30)
    assert status == 0
    lines = out.splitlines()
    assert [line.partition(" cd ")[0] for line in lines] == [
        "[chief 0] b:", "[worker 0] b:", "[worker 1] nowhere:", "[ps 0] b:",
    ]  # fmt: skip
    assert all(f"{sys.executable} sleep.py 'two words'" in line for line in lines)
    assert '"chief": ["b:2222"], "worker": ["b:2223", "nowhere:2222"], "ps": ["b:2224"]' in lines[0]
