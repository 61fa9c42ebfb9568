"""The batch script; and `python -m launch slurm` with a real Slurm of two nodes with addresses of their own."""

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from launch import UsageError, slurm
from tests.launch.hosts import DEADLINE, Hosts, Launcher, possible

MNIST = ("trainers.mnist", "--dataset=digits")


def script(*arguments, program=("trainers.mnist", "--epochs=2")):
    parser = argparse.ArgumentParser()
    slurm.add_arguments(parser)
    return slurm.script(parser.parse_args(["--python=python", *arguments]), program).splitlines()


def test_the_script():
    lines = script("--ps=1", "--workers=2", "--nodes=2", "--gpus_per_task=1", "--time=1:00:00", "--sbatch=--exclusive")
    assert lines[0] == "#!/bin/bash"
    assert [line for line in lines if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=trainers.mnist", "#SBATCH --ntasks=4", "#SBATCH --nodes=2", "#SBATCH --gpus-per-task=1",
        "#SBATCH --time=1:00:00", "#SBATCH --exclusive",
    ]  # fmt: skip
    assert "export TF2DIST_TASKS=chief:1,worker:2,ps:1" in lines
    assert (
        lines[-1] == "exec srun --kill-on-bad-exit=1 --distribution=block --label python -m trainers.mnist --epochs=2"
    )


def test_hosts_are_nodes():
    lines = script("--hosts=n1,n2:2", "--port=7000", "--start_timeout=9")
    assert {"#SBATCH --nodelist=n1,n2", "#SBATCH --nodes=2", "#SBATCH --ntasks=3"} <= set(lines)
    assert {"export TF2DIST_TASKS=worker:3", "export TF2DIST_PORT=7000", "export TF2DIST_START_TIMEOUT=9"} <= set(lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes=0"], "--nodes=0"),
        (["--cpus_per_task=0"], "--cpus_per_task=0"),
        (["--cluster=/dev/null"], "names no worker"),
        (["--workers=0"], "workers is 0"),
        (["--sbatch=--x\nrm"], "more than one line"),
    ],
)
def test_what_cannot_be(arguments, said):
    with pytest.raises(UsageError) as error:
        script(*arguments)
    assert said in str(error.value)


def test_without_slurm(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "launch", "slurm", "--", "json.tool"],
        env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no sbatch" in done.stderr


CONFIG = """
ClusterName=tf2dist
SlurmctldHost={name}(10.77.0.1)
AuthInfo=socket={here}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/%n
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/%n.pid
SlurmctldLogFile={here}/slurmctld.log
SlurmdLogFile={here}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
JobRequeue=0
NodeName=b NodeHostname={name} NodeAddr=10.77.0.2 Port=17001 CPUs=4
NodeName=c NodeHostname={name} NodeAddr=10.77.0.3 Port=17002 CPUs=4
PartitionName=all Nodes=b,c Default=YES State=UP
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Hosts a (the controller), b and c (nodes)."""
    why = possible() or ", ".join(p for p in ("slurmctld", "slurmd", "munged", "srun") if not shutil.which(p))
    if why:
        pytest.skip(f"no Slurm here: {why}")
    here = tmp_path_factory.mktemp("slurm")
    here.chmod(0o755)
    with contextlib.ExitStack() as stack:
        hosts = Hosts(here, "abc", stack)
        for name in ("state", "b", "c"):
            (here / name).mkdir()
        (here / "slurm.conf").write_text(CONFIG.format(here=here, name=socket.gethostname()))
        (here / "munge.key").write_bytes(os.urandom(128))
        (here / "munge.key").chmod(0o600)
        munge = [f"--{name}-file={here}/munge.{name}" for name in ("key", "log", "pid", "seed")]
        hosts.environment = {**os.environ, "SLURM_CONF": str(here / "slurm.conf")}
        serve(hosts, "a", ["munged", "--foreground", "--force", f"--socket={here}/munge.socket", *munge])
        until(lambda: (here / "munge.socket").exists())
        serve(hosts, "a", ["slurmctld", "-D"])
        for name in "bc":
            serve(hosts, name, ["slurmd", "-D", "-N", name])
        until(lambda: ask(hosts, "sinfo", "-h", "-o", "%T").split() == ["idle"], within=60.0)
        yield hosts


def serve(hosts, name, command):
    log = open(hosts.directory / f"{command[0]}_{name}.out", "wb")  # noqa: SIM115 - it is the server's
    pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    hosts.servers.append(hosts.on(name, command, env=hosts.environment, **pipes))


def ask(hosts, *command):
    done = hosts.on("a", command, env=hosts.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.communicate(timeout=60)[0]


def until(true, within=DEADLINE):
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def submit(nodes, tmp_path):
    """submit(*arguments): submits a job on host a, and waits for it; its output is in the file `out`."""
    started = []

    def start(*arguments):
        options = ["--wait", "--nodes=2", "--output=out", "--sbatch=--overcommit"]
        env = {"SLURM_CONF": nodes.environment["SLURM_CONF"]}
        started.append(Launcher(nodes, "a", ["slurm", *options, *arguments], tmp_path, env))
        return started[-1]

    yield start
    ask(nodes, "scancel", "--user=root", "--full")
    for launcher in started:
        launcher.process.kill()
        launcher.process.wait()
        launcher.out.close()
    until(lambda: not ask(nodes, "squeue", "-h").strip())
    assert nodes.empty("b", "c")


slow = pytest.mark.slow
limit = pytest.mark.timeout(400)


def output(directory):
    return (directory / "out").read_text(errors="replace") if (directory / "out").exists() else ""


@slow
@limit
@pytest.mark.parametrize(
    ("arguments", "strategy", "processes"),
    [
        (["--ps=1", "--workers=2"], "ps", {"chief": 1, "worker": 2, "ps": 1}),
        (["--workers=2"], "multiworker", {"worker": 2}),
    ],
)
def test_mnist_on_two_nodes(submit, tmp_path, arguments, strategy, processes):
    report = tmp_path / "report.json"
    job = submit(*arguments, "--", *MNIST, f"--strategy={strategy}", "--epochs=10", f"--report={report}")
    status, said = job.finish()
    assert status == 0, said + output(tmp_path)
    found = json.loads(report.read_text())
    assert found["processes"] == processes
    assert found["test_accuracy"] > 0.9


@slow
@limit
def test_a_node_that_is_cut_off_in_the_middle(nodes, submit, tmp_path):
    job = submit("--workers=2", "--", *MNIST, "--strategy=multiworker", "--epochs=100000")
    until(lambda: "epoch 2/" in output(tmp_path) or job.process.poll() is not None)
    nodes.cut("c")
    try:
        status, said = job.finish(150)
        assert status != 0, said + output(tmp_path)
        said = output(tmp_path)
        assert "NODE FAILURE" in said or "worker 1 at c:" in said, said
    finally:
        nodes.cut("c", again=True)
    until(lambda: ask(nodes, "sinfo", "-h", "-o", "%T").split() == ["idle"])
