"""The batch script; and `python -m launch slurm` with a real Slurm of three nodes with addresses of their own."""

import argparse
import contextlib
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

from tests.conftest import sampled
from tests.launch.hosts import DEADLINE, ROOT, Hosts, Launcher, possible
from tf2dist.errors import UsageError
from tf2dist.launch.backends import slurm

MNIST = ("trainers.mnist", "--dataset=digits")


def script(*arguments, program=("trainers.mnist", "--epochs=2")):
    parser = argparse.ArgumentParser()
    slurm.BACKEND.add_arguments(parser)
    return slurm.script(parser.parse_args(["--python=python", *arguments]), program).splitlines()


def test_the_script():
    lines = script("--ps=1", "--workers=2", "--nodes=2", "--gpus_per_task=1", "--time=1:00:00", "--sbatch=--exclusive")
    assert lines[0] == "#!/bin/bash"
    assert [line for line in lines if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=trainers.mnist", "#SBATCH --ntasks=4", "#SBATCH --nodes=2", "#SBATCH --gpus-per-task=1",
        "#SBATCH --time=1:00:00", "#SBATCH --requeue", "#SBATCH --open-mode=append", "#SBATCH --signal=TERM@120",
        "#SBATCH --exclusive",
    ]  # fmt: skip
    assert "export TF2DIST_TASKS=chief:1,worker:2,ps:1" in lines
    srun = "srun --export=ALL --kill-on-bad-exit=1 --wait=60 --distribution=block --label"
    assert f'{srun} bash -c "$task" task python -m trainers.mnist --epochs=2' in lines
    assert f"{srun} python -m trainers.mnist --epochs=2" in script("--workers=2")
    subprocess.run(["bash", "-n"], input="\n".join(lines), text=True, check=True)


def test_how_a_job_saves_before_its_time_is_up():
    assert "#SBATCH --signal=TERM@300" in script("--time=1:00:00", "--grace=300")
    assert not [line for line in script("--time=1:00:00", "--grace=0") if "--signal" in line]
    assert not [line for line in script() if "--signal" in line]
    for short, seconds in {"2": 30, "4:00": 60, "0:02:00": 30, "infinite": 120, "0-1": 120, "0-0:04": 60}.items():
        assert f"#SBATCH --signal=TERM@{seconds}" in script(f"--time={short}")  # Slurm would ask at the beginning
    assert "#SBATCH --no-requeue" in script("--max_requeues=0")


FAILS = (
    "import os, sys; open(sys.argv[1], 'a').write('.'); os._exit({status}) if len(open(sys.argv[1]).read()) < 3 else 0"
)


@pytest.mark.parametrize(
    ("options", "number", "status", "starts", "ends", "said"),
    [
        (["--ps=1", "--workers=2"], 2, 9, 3, 0, "launch: worker 1 ended with status 9; it is started again (1 more"),
        (["--ps=1", "--workers=2", "--no-chief"], 1, 9, 3, 0, "launch: worker 1 ended with status 9; it is"),
        (["--ps=1", "--workers=2"], 2, 2, 1, 2, ""),  # a wrong command
        (["--ps=1", "--workers=2"], 2, 75, 1, 75, ""),  # it has saved
        (["--ps=1", "--workers=2"], 0, 9, 1, 9, ""),  # the chief
        (["--ps=1", "--workers=2", "--no-chief"], 0, 9, 1, 9, ""),  # the worker that leads
        (["--ps=1", "--workers=2"], 3, 9, 3, 0, "launch: ps 0 ended with status 9; it is started again (1 more to go)"),
        (["--ps=2", "--workers=1", "--no-chief"], 2, 9, 3, 0, "launch: ps 1 ended with status 9; it is started again"),
        (["--ps=1", "--workers=2", "--max_restarts=1"], 3, 9, 2, 9, "launch: ps 0 ended with status 9; it is started"),
        (["--ps=1", "--workers=1", "--data_workers=2"], 4, 9, 3, 0, "launch: data_worker 1 ended with status 9; it is"),
        (["--workers=1", "--data_workers=2"], 1, 9, 3, 0, "launch: data_worker 0 ended with status 9; it is started"),
        (["--workers=1", "--data_workers=2"], 0, 9, 1, 9, ""),  # the worker that reads
        (["--data_workers=1", "--max_restarts=1"], 1, 9, 2, 9, "launch: data_worker 0 ended with status 9; it is"),
    ],
)
def test_what_a_coordinator_leads_is_started_again(tmp_path, options, number, status, starts, ends, said):
    found = run_task(tmp_path, options, number, FAILS.format(status=status))
    assert (found.returncode, (tmp_path / "starts").read_text()) == (ends, "." * starts), found.stderr
    assert said in found.stderr
    assert bool(said) == ("again" in found.stderr)
    told = tmp_path / "preempted.status"  # what the job ends with
    assert told.exists() == (number == 0)
    assert number or told.read_text() == f"{status}\n"


def test_a_worker_that_was_asked_to_stop_is_not_started_again(tmp_path):
    """Nor does it end with a status for which `srun` would kill the others, which may still save."""
    (tmp_path / "sleep").write_text("#!/bin/sh\nkill $$\necho sleeps $1")  # it is asked, too
    (tmp_path / "sleep").chmod(0o755)
    stops = "import os, signal; signal.signal(15, lambda *_: os._exit(7)); os.kill(os.getppid(), 15); os.kill(0, 15)"
    found = run_task(tmp_path, ["--ps=1", "--workers=2"], 2, f"{stops}; signal.pause()", start_new_session=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "sleeps infinity\n", "")


def test_a_worker_of_a_job_with_an_evaluator_does_not_hold_it_up(tmp_path):
    """There `srun` waits for all tasks."""
    options = ["--ps=1", "--workers=2", "--evaluator", "--max_restarts=0"]
    found = run_task(tmp_path, options, 1, FAILS.format(status=9))
    assert (found.returncode, found.stdout) == (0, "")
    assert "it is not started again" in found.stderr


def test_a_wrong_command_is_one_at_the_first_start_alone(tmp_path):
    fails = "import os, sys; open(sys.argv[1], 'a').write('.'); os._exit([9, 2, 0][len(open(sys.argv[1]).read()) - 1])"
    found = run_task(tmp_path, ["--ps=1", "--workers=2"], 1, fails)
    assert (found.returncode, (tmp_path / "starts").read_text()) == (0, "..."), found.stderr


def test_a_worker_that_is_given_up_waits_for_the_job(tmp_path):
    (tmp_path / "sleep").write_text("#!/bin/sh\necho sleeps $1")
    (tmp_path / "sleep").chmod(0o755)
    found = run_task(tmp_path, ["--ps=1", "--workers=2", "--max_restarts=1"], 1, FAILS.format(status=9))
    assert found.stderr.splitlines()[1:] == ["launch: worker 0 ended with status 9; it is not started again"]
    assert found.stdout == "sleeps 1\nsleeps infinity\n"


def run_task(directory, options, number, program, **kwargs):
    """Runs what `srun` runs as task `number` of these options, with a program in Python."""
    lines = script(*options)
    begin = next(n for n, line in enumerate(lines) if line.startswith("task="))
    end = next(n for n, line in enumerate(lines) if line.startswith("srun "))
    run = 'exec bash -c "$task" task "$@"'
    env = {"PATH": f"{directory}:{os.environ['PATH']}", "SLURM_PROCID": str(number)}
    env["TF2DIST_PREEMPTED_FILE"] = str(directory / "preempted")
    return subprocess.run(
        ["bash", "-c", "\n".join([*lines[begin:end], run]), "x", sys.executable, "-c", program, directory / "starts"],
        env=env, capture_output=True, text=True, timeout=60, check=False, **kwargs,
    )  # fmt: skip


COMMANDS = {  # in place of Slurm's
    "srun": 'echo "srun $TF2DIST_PREEMPTIBLE"; [ "$PREEMPTED" ] && touch "$TF2DIST_PREEMPTED_FILE"; exit "$STATUS"',
    "scontrol": 'echo "scontrol $1" >&2; echo "JobId=$4 JobName=x JobState=$STATE Reason=None"',
    "sleep": "true",
}


@pytest.mark.parametrize(
    ("preempted", "state", "restarts", "status", "queued"),
    [
        ("1", "RUNNING", "0", 75, True),
        ("1", "RUNNING", "99", 75, True),
        ("1", "RUNNING", "100", 75, False),
        ("1", "CANCELLED", "0", 75, False),  # somebody wants it to end
        ("", "RUNNING", "0", 137, False),  # it has failed
    ],
)
def test_the_script_queues_a_job_again_that_was_preempted(tmp_path, preempted, state, restarts, status, queued):
    """Whatever `srun` ends with: it may have killed tasks that were about to end."""
    (tmp_path / "tmp").mkdir()
    for name, line in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    env = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp"), "STATUS": "137",
        "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": restarts, "PREEMPTED": preempted, "STATE": state,
    }  # fmt: skip
    done = subprocess.run(
        ["bash"], input="\n".join(script()), env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines()[0] == "srun 1"
    assert ("scontrol requeue" in done.stderr) == queued
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("cores", ["", "3"])
@pytest.mark.parametrize("printed", [True, False])
def test_srun_is_told_of_the_cores_that_sbatch_was(tmp_path, printed, cores):
    """By the script that is printed and by the one to copy; nothing if sbatch was not."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "cores:$SRUN_CPUS_PER_TASK" "$1"\n')
    srun.chmod(0o755)
    text = "\n".join(script()) if printed else (ROOT / "launch" / "scripts" / "job.sbatch").read_text()
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | ({"SLURM_CPUS_PER_TASK": cores} if cores else {})
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"cores:{cores} --export=ALL\n"


def test_names_with_blanks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my train.py").touch()
    lines = script("--output=my runs/%j.out", program=("my train.py",))
    assert "#SBATCH --job-name='my train'" in lines
    assert "#SBATCH --output='my runs/%j.out'" in lines


def test_hosts_are_nodes():
    lines = script("--hosts=n1,n2:2", "--port=7000", "--start_timeout=9", "--stall_timeout=600")
    assert {"#SBATCH --nodelist=n1,n2", "#SBATCH --nodes=2", "#SBATCH --ntasks=3"} <= set(lines)
    assert {"export TF2DIST_TASKS=worker:3", "export TF2DIST_PORT=7000", "export TF2DIST_START_TIMEOUT=9"} <= set(lines)
    assert "export TF2DIST_STALL_TIMEOUT=600" in lines


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes=0"], "--nodes=0"),
        (["--cpus_per_task=0"], "--cpus_per_task=0"),
        (["--cluster=/dev/null"], "names no worker"),
        (["--workers=0"], "workers is 0"),
        (["--grace=-1"], "--grace=-1 must be 0 or more"),
        (["--max_requeues=-1"], "--max_requeues=-1 must be 0 or more"),
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


def test_ctrl_c_before_the_number_of_the_job_is_known(tmp_path):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun; exec sleep 60\n")
    sbatch.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "launch", "slurm", "--wait", "--", "json.tool"], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, start_new_session=True,
    ) as launcher:  # fmt: skip
        deadline = time.monotonic() + 30
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(launcher.pid, signal.SIGINT)
        _, error = launcher.communicate(timeout=30)
    assert launcher.returncode == 130
    assert error == "launch: sbatch has not said whether it has made a job; `squeue --me` lists yours\n"


@pytest.mark.parametrize(("said", "end"), [("", ""), (" on cluster fed1", "-M fed1 ")])
def test_a_job_of_a_federation_is_known_by_its_number(tmp_path, said, end):
    """In a directory whose name is no text."""
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(odd)
    for name, does in (
        ("sbatch", f"cat > script; echo Submitted batch job 42{said}; exit 3"),
        ("scontrol", 'echo "$@" > asked'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "launch", "slurm", "--wait", "--", "json.tool"], cwd=odd,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, "launch: job 42 ended with an error\n")
    assert pathlib.Path(os.fsdecode(odd), "asked").read_text() == f"{end}show job --oneliner 42\n"
    assert b"\ncd '" + odd + b"' " in pathlib.Path(os.fsdecode(odd), "script").read_bytes()


CONFIG = """
ClusterName=tf2dist
SlurmctldHost={name}(10.77.0.1)
AuthInfo=socket={here}/munge.socket,cred_expire=40
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
NodeName=d NodeHostname={name} NodeAddr=10.77.0.4 Port=17003 CPUs=4
PartitionName=all Nodes=b,c,d Default=YES State=UP
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Hosts a (the controller), b, c and d (nodes)."""
    why = possible() or ", ".join(p for p in ("slurmctld", "slurmd", "munged", "srun") if not shutil.which(p))
    if why:
        pytest.skip(f"no Slurm here: {why}")
    here = tmp_path_factory.mktemp("slurm")
    here.chmod(0o755)
    with contextlib.ExitStack() as stack:
        hosts = Hosts(here, "abcd", stack)
        for name in ("state", *"bcd"):
            (here / name).mkdir()
        (here / "slurm.conf").write_text(CONFIG.format(here=here, name=socket.gethostname()))
        (here / "munge.key").write_bytes(os.urandom(128))
        (here / "munge.key").chmod(0o600)
        munge = [f"--{name}-file={here}/munge.{name}" for name in ("key", "log", "pid", "seed")]
        hosts.environment = {**os.environ, "SLURM_CONF": str(here / "slurm.conf")}
        serve(hosts, "a", ["munged", "--foreground", "--force", f"--socket={here}/munge.socket", *munge])
        until(lambda: (here / "munge.socket").exists())
        serve(hosts, "a", ["slurmctld", "-D"])
        for name in "bcd":
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
        options = [
            "--wait",
            "--output=out",
            "--sbatch=--overcommit",
            *([] if "--nodes=3" in arguments else ["--nodes=2"]),
        ]
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
    assert nodes.empty("b", "c", "d")


slow = pytest.mark.slow
limit = pytest.mark.timeout(400)


def output(directory):
    return (directory / "out").read_text(errors="replace") if (directory / "out").exists() else ""


JOBS = {
    "ps": (["--ps=1", "--workers=2"], {"chief": 1, "worker": 2, "ps": 1}),
    "multiworker": (["--workers=2"], {"worker": 2}),
}


@limit
@pytest.mark.parametrize("strategy", sampled(JOBS, (), ["ps"]))
def test_mnist_on_two_nodes(submit, tmp_path, strategy):
    arguments, processes = JOBS[strategy]
    report = tmp_path / "report.json"
    job = submit(*arguments, "--", *MNIST, f"--strategy={strategy}", "--epochs=10", f"--report={report}")
    status, said = job.finish()
    assert status == 0, said + output(tmp_path)
    found = json.loads(report.read_text())
    assert found["processes"] == processes
    assert found["test_accuracy"] > 0.9


@slow
@pytest.mark.timeout(700)
def test_a_job_that_is_asked_to_stop_is_queued_again(nodes, submit, tmp_path):
    """By SIGTERM to its tasks, as Slurm sends it when the time is nearly up; it goes on where it was.

    Slurm starts it when the credentials of its first run have expired (cred_expire, two minutes where it is not set).
    When `scontrol update` has it begin before, it has failed now and then at once.
    """
    report = tmp_path / "report.json"
    flags = ["--epochs=150", f"--report={report}", f"--logdir={tmp_path / 'log'}"]
    job = submit("--ps=1", "--workers=2", "--evaluator", "--", *MNIST, *flags)  # a task that ends kills the others
    under_way(job, tmp_path)
    assert not ask(nodes, "scancel", "--user=root", "--signal=TERM")
    until(lambda: "has saved step" in output(tmp_path), within=60.0)
    until(lambda: "queued again" in output(tmp_path) or job.process.poll() is not None, within=60.0)
    status, said = job.finish(480)
    assert status == 0, said + output(tmp_path)
    assert "went on from a checkpoint of" in output(tmp_path)
    assert json.loads(report.read_text())["steps"] == 150 * 12


@pytest.fixture
def patient(nodes):
    """As Slurm is by default, its controller waits so long for a node that the tasks notice first."""
    file = nodes.directory / "slurm.conf"
    text = file.read_text()

    def configure(text):
        file.write_text(text)
        assert not ask(nodes, "scontrol", "reconfigure")

    configure(text.replace("SlurmdTimeout=10", "SlurmdTimeout=300"))
    yield
    configure(text)
    until(lambda: ask(nodes, "sinfo", "-h", "-o", "%T").split() == ["idle"])


def under_way(job, directory):
    until(lambda: "epoch 2/" in output(directory) or job.process.poll() is not None)
    assert job.process.poll() is None, job.text() + output(directory)


def tasks_end(nodes, name):
    """Those on a node that is cut off; Slurm's own processes there wait until it is back."""
    return nodes.empty(name, within=60.0, but="slurm") or [c for c in nodes.processes(name).values() if "srun" in c]


CUT_OFF = {
    "multiworker": (["--workers=2", "--nodes=2"], "c", "worker 1 at c:"),
    "ps": (["--ps=1", "--workers=2", "--nodes=3"], "b", "chief 0 at b:"),
}


@limit
@pytest.mark.parametrize("strategy", sampled(CUT_OFF))
def test_a_node_that_is_cut_off_in_the_middle(nodes, submit, tmp_path, strategy):
    """Slurm or the tasks themselves end the job, whoever notices first."""
    arguments, cut, lost = CUT_OFF[strategy]
    arguments = [*arguments, "--max_requeues=0"]  # else Slurm queues it again, and it waits for the node
    job = submit(*arguments, "--", *MNIST, f"--strategy={strategy}", "--epochs=100000")
    under_way(job, tmp_path)
    with nodes.cut_off(cut):
        status, said = job.finish(150)
        assert status != 0, said + output(tmp_path)
        assert "(NodeDown)" in said or lost in output(tmp_path), said + output(tmp_path)
        assert f"what it has printed is in {tmp_path}/out" in said
        assert tasks_end(nodes, cut)
    until(lambda: ask(nodes, "sinfo", "-h", "-o", "%T").split() == ["idle"])


TRAINS = """
import os
import keras
import numpy as np
import tf2dist

strategy = tf2dist.join("ps")

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch + 1}/", flush=True)
        self.model.stop_training = os.path.exists("enough")

with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
done = tf2dist.fit(model, np.ones((64, 3)), np.ones((64, 1)), epochs=10**6, callbacks=[Stop()], verbose=0)
print("exact:", tf2dist.updates(model) == 2 * len(done.epoch), flush=True)
"""


@slow
@limit
def test_a_worker_that_was_killed_is_started_again(nodes, submit, tmp_path):
    (tmp_path / "trains.py").write_text(TRAINS)
    job = submit("--ps=1", "--workers=2", "--", "trains.py")
    under_way(job, tmp_path)
    os.kill(task_process(nodes, 2), signal.SIGKILL)
    until(lambda: "is back" in output(tmp_path) or job.process.poll() is not None)
    (tmp_path / "enough").touch()
    status, said = job.finish(100)
    assert status == 0, said + output(tmp_path)
    assert "launch: worker 1 ended with status 137; it is started again (2 more to go)" in output(tmp_path)
    assert "exact: True" in output(tmp_path)


def task_process(nodes, number):
    """The process of a program that runs as a task of Slurm's."""
    for pid, command in (item for name in "bcd" for item in nodes.processes(name).items()):
        if command.startswith(sys.executable):
            with open(f"/proc/{pid}/environ") as file:
                if f"SLURM_PROCID={number}" in file.read().split("\0"):
                    return pid
    raise AssertionError(f"task {number} does not run")


@pytest.mark.exhaustive  # test_ssh has its like
@limit
def test_a_worker_whose_node_is_cut_off_is_done_without(nodes, submit, patient, tmp_path):
    report = tmp_path / "report.json"
    arguments = ["--nodes=3", "--ps=1", "--workers=2", "--max_restarts=0"]  # else it is started again there, in vain
    job = submit(*arguments, "--", *MNIST, "--epochs=100", f"--report={report}")
    under_way(job, tmp_path)
    with nodes.cut_off("c"):
        status, said = job.finish(240)
        assert nodes.processes("c")  # which Slurm would have ended
        until(lambda: not [c for c in nodes.processes("c").values() if c.startswith(sys.executable)])
    assert nodes.empty("c", within=60.0)  # Slurm ends the task's shell once the node is back
    assert status == 0, said + output(tmp_path)
    # Whether it counts as lost before the others have done all is a matter of seconds.
    assert json.loads(report.read_text())["steps"] == 100 * 12


@pytest.mark.exhaustive
@slow
@limit
def test_a_server_whose_node_is_cut_off_is_named(nodes, submit, patient, tmp_path):
    job = submit("--nodes=3", "--ps=1", "--workers=2", "--max_requeues=0", "--", *MNIST, "--epochs=100000")
    under_way(job, tmp_path)
    with nodes.cut_off("d"):
        status, said = job.finish(240)
        assert tasks_end(nodes, "d")
    assert status != 0
    assert "ps 0 at d:" in output(tmp_path)
    assert f"what it has printed is in {tmp_path}/out" in said


@slow
@limit
@pytest.mark.parametrize("how", sampled(["scancel", "srun", "launcher"], (), ("scancel",)))
def test_nothing_is_left_when_the_job_is_ended(nodes, submit, tmp_path, how):
    """By Slurm's own command, or the death of what it started; without the launcher a job goes on, as in any queue."""
    (tmp_path / "sleep.py").write_text("import time; print('runs', flush=True); time.sleep(1000)")
    job = submit("--ps=1", "--workers=2", "--", "sleep.py")
    until(lambda: output(tmp_path).count("runs") == 4)
    if how == "launcher":
        os.killpg(job.process.pid, signal.SIGINT)
        status, said = job.finish(30)
        assert status == 130
        number = said.partition("launch: job ")[2].split()[0]
        assert f"launch: job {number} goes on; `scancel {number}` ends it" in said
        assert ask(nodes, "squeue", "-h", "-o", "%T").split() == ["RUNNING"]
        ask(nodes, "scancel", number)
    elif how == "scancel":
        ask(nodes, "scancel", "--user=root")
        status, said = job.finish(60)
        assert status != 0
        assert "CANCELLED" in said or "COMPLETING" in said  # while its tasks are being ended
    else:
        for pid in [pid for pid, command in nodes.processes("b").items() if command.startswith("srun")]:
            os.kill(pid, signal.SIGKILL)
        assert job.finish(60)[0] != 0
    assert nodes.empty("b", "c", "d")


@slow
@limit
def test_tasks_have_their_variables_and_cores(submit, tmp_path):
    names = ("TF2DIST_TASKS", "SRUN_CPUS_PER_TASK")
    (tmp_path / "sees.py").write_text(f"import os\nprint('is', *(os.environ[name] for name in {names}))\n")
    job = submit("--ps=1", "--workers=2", "--cpus_per_task=2", "--sbatch=--export=NONE", "--", "sees.py")
    assert job.finish(60)[0] == 0, job.text() + output(tmp_path)
    assert output(tmp_path).count("is chief:1,worker:2,ps:1 2\n") == 4


@slow
@limit
def test_tasks_that_are_not_counted_node_by_node_say_so(nodes):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom tf2dist.cluster import environments\n"
    code += "print(environments.from_environment().job_id)"
    step = ["srun", "--nodes=2", "--ntasks=4", "--overcommit"]
    said = {how: ask(nodes, *step, f"--distribution={how}", sys.executable, "-c", code) for how in ("block", "cyclic")}
    [name] = {*said["block"].split()}
    assert name.endswith(".0")
    expected = r"task 1 is on ([cd]), and tasks are counted node by node, which makes that ([bc])\b"
    assert (found := re.search(expected, said["cyclic"])), said["cyclic"]
    assert found[1] != found[2]
