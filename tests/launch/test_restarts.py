"""What has failed is started again; logs; threads; a network of its own."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tf2dist.launch import network_namespace
from tf2dist.launch.restart_budget import RestartBudget


@pytest.mark.slow
def test_the_whole_job_is_started_again(run, tmp_path):
    code = """
    times = [number for number in range(3) if (here / f"{me} {number}").exists()]
    (here / f"{me} {len(times)}").touch()
    if len(times) < 2:
        if me == "worker 1":
            wait_for(f"worker 0 {len(times)}")
            sys.exit(3)
        time.sleep(1000)
    print("done")
    """
    status, out, err = run(code, "--workers=2", "--max_restarts=2")
    assert (status, out.count("done")) == (0, 2), err
    assert {path.name for path in tmp_path.iterdir()} >= {f"worker {task} {n}" for task in (0, 1) for n in (0, 1, 2)}
    assert err.count("the job is started again") == 2


@pytest.mark.slow
def test_nothing_of_an_attempt_is_left_when_the_next_one_begins_in_the_same_fork_server(run, tmp_path):
    code = """
    if not (here / "first").exists():
        left = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, start_new_session=True)
        left.stdout.readline()
        (here / "first").write_text(f"{os.getppid()} {left.pid}")
        os.kill(os.getpid(), 9)
    server, left = (here / "first").read_text().split()
    print(os.getppid() == int(server), os.path.exists(f"/proc/{left}"))
    """
    status, out, err = run(code, "--max_restarts=1")
    assert (status, out) == (0, "[worker 0] True False\n"), err


@pytest.mark.slow
def test_a_signal_ends_a_job_that_fails_at_once_again_and_again(start):
    """Its attempts begin a few seconds apart."""
    job = start("print('try', flush=True); sys.exit(3)", "--max_restarts=1000")
    job.until("try", 2)
    job.process.terminate()
    status, out, _ = job.finish()
    assert status == 143
    assert out.count("try") <= 3


FEWER = """
spec = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
times = len(list(here.glob(f"{me} *")))
print(f"of {len(spec)}, {os.environ['TF_NUM_INTRAOP_THREADS']} threads", flush=True)
(here / f"{me} {times}").touch()
for other in range(len(spec)):
    wait_for(f"worker {other} {times}")
if me == "worker 1" and times < 3:
    %s
time.sleep(1000 if times < 3 else 0)
"""


@pytest.mark.slow
def test_the_job_goes_on_with_fewer_workers_where_it_may(run, tmp_path, monkeypatch):
    """Each that is killed is left out, until no fewer are allowed; three times unless told otherwise."""
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    status, out, err = run(FEWER % "os.kill(os.getpid(), 9)", "--workers=2:4", f"--logs={tmp_path}/logs", "--tee")
    assert status == 0, err
    assert [out.count(f"of {number}, ") for number in (4, 3, 2)] == [4, 3, 4]
    assert [line for line in err.splitlines() if "goes on with" in line] == [
        f"launch: worker 1 was killed; the job goes on with {number} of 4 workers" for number in (3, 2)
    ]
    assert err.count("the job is started again") == 3
    assert (tmp_path / "logs" / "worker-1.log").read_text().count("of 2, ") == 2
    assert (tmp_path / "logs" / "worker-3.log").read_text().count("of ") == 1


WAITS = """
import sys, time
from tf2dist.launch.process import Process
from tf2dist.launch.supervisor import supervise

def next_attempt(killed):
    print("waits", repr(killed), flush=True)
    time.sleep(float(sys.argv[2]))

fails = Process("worker 0", (sys.executable, "-c", sys.argv[1]), command=True)
settings = {"max_restarts": 1, "timeout": float(sys.argv[4])} if len(sys.argv) > 4 else {"max_restarts": 1}
sys.exit(supervise([fails], next_attempt=next_attempt, patience=float(sys.argv[3]), **settings).status)
"""
KILLED = "import os; os.kill(os.getpid(), 9)"


@pytest.mark.slow
@pytest.mark.parametrize("fails", [KILLED, "import sys; sys.exit(75)"])
def test_an_interrupt_while_nothing_can_be_started_yet(fails):
    command = [sys.executable, "-c", WAITS, fails, "1000", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == ("waits 'worker 0'\n" if fails == KILLED else "waits ''\n")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error.endswith("launch: the job is not started again: ended by SIGINT\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "status", "said"),
    [
        (["0", "1"], 137, "the job is not started again\n"),
        (["3", "100", "2"], 1, "not started again: the time of the job was up when it was to be started again\n"),
    ],
)
def test_a_job_that_cannot_be_started_again_in_time(limits, status, said):
    done = subprocess.run(
        [sys.executable, "-c", WAITS, KILLED, *limits], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status
    assert done.stderr.endswith(said)


@pytest.mark.slow
def test_a_worker_that_has_failed_by_itself_is_not_left_out(run):
    """Others would fail as it has."""
    status, out, err = run(FEWER % "sys.exit(3)", "--workers=1:2", "--max_restarts=1")
    assert status == 3
    assert (out.count("of 2, "), out.count("of 1, ")) == (4, 0)
    assert "goes on with" not in err


def test_only_so_often(run):
    status, _, err = run("print('try'); sys.exit(3)", "--max_restarts=2")
    assert status == 3
    assert err.count("the job is started again") == 2


def test_a_wrong_command_is_not_tried_again(run):
    status, _, err = run("sys.exit(2)", "--max_restarts=2")
    assert (status, err.count("again")) == (2, 0)


def test_an_interrupted_job_is_not_started_again(start):
    job = start("print('here'); time.sleep(1000)", "--max_restarts=2")
    job.until("here")
    job.process.terminate()
    status, _, err = job.finish()
    assert (status, err.count("again")) == (143, 0)


PREEMPTED = """
times = len(list(here.glob(f"{me} *")))
(here / f"{me} {times}").touch()
if times < 2:
    %s
print("done")
"""


@pytest.mark.parametrize("options", [[], ["--max_restarts=1"]])
def test_a_job_that_was_preempted_is_started_again(run, tmp_path, options):
    """Without a count of its failures."""
    code = PREEMPTED % 'wait_for(f"worker 0 {times}"); wait_for(f"worker 1 {times}"); sys.exit(75)'
    status, out, err = run(code, "--workers=2", *options)
    assert (status, out.count("done")) == (0, 2), err
    assert err.count("ended with status 75: the job was preempted, and has saved") == 2
    assert [line for line in err.splitlines() if "again" in line] == [
        f"launch: the job is started again ({left} more to go)" for left in (19, 18)
    ]


def test_a_job_that_was_preempted_and_is_not_to_be_started_again_says_so_by_its_status(run):
    status, _, err = run(PREEMPTED % "sys.exit(75)", "--workers=2", "--max_restarts=0")
    assert (status, err.count("again")) == (75, 0)
    assert "failed" not in err


def test_preemptions_come_to_an_end():
    budget = RestartBudget.of(None)
    assert sum(budget.take_preemption() for _ in range(100)) == 20
    assert (budget.worker, budget.job) == (3, 0)


@pytest.mark.slow
def test_a_server_that_is_told_to_be_started_again_is_not_started_by_itself(run):
    """It says what it was told; the coordinator's status counts."""
    code = """
    if me != "chief 0":
        (here / me).touch()
        sys.exit(75)
    for name in ("worker 0", "ps 0"):
        wait_for(name)
    time.sleep(0.5)
    sys.exit(3)
    """
    status, _, err = run(code, "--ps=1", "--workers=1")
    assert status == 3
    assert err.startswith("launch: chief 0 (pid ")


SAVES = """
def end(*_):
    time.sleep(0.2)
    os._exit(%s)
signal.signal(signal.SIGTERM, end)
print("here", flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "ends_with", "status"),
    [
        (signal.SIGTERM, 75, 75),
        (signal.SIGTERM, 0, 143),
        (signal.SIGTERM, "75 if me != 'worker 0' else 1", 143),
        (signal.SIGINT, 75, 130),
        (signal.SIGHUP, 75, 129),
    ],
)
def test_a_job_that_saves_when_the_launcher_is_ended(start, signum, ends_with, status):
    """It is not started again here: whoever has sent the signal is told that it may be."""
    job = start(SAVES % ends_with, "--workers=2", "--max_restarts=3")
    job.until("here", times=2)
    job.process.send_signal(signum)
    found, _, err = job.finish()
    assert (found, err.count("again")) == (status, 0), err


@pytest.mark.slow
def test_a_time_limit_is_a_failure_though_the_job_has_saved(run):
    status, _, err = run(SAVES % 75, "--workers=2", "--timeout=2")
    assert status == 1
    assert "had not ended after 2 s" in err


@pytest.mark.parametrize(("given", "seen"), [(None, "1"), ("0", "0")])
def test_tasks_are_told_that_they_may_be_preempted(run, given, seen):
    env = {} if given is None else {"TF2DIST_PREEMPTIBLE": given}
    assert run("print(os.environ['TF2DIST_PREEMPTIBLE'])", env=env)[1] == f"[worker 0] {seen}\n"


def test_a_worker_of_servers_is_started_again_in_its_place(run, tmp_path):
    code = """
    if me == "worker 1" and not (here / "failed").exists():
        (here / "failed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    (here / me).touch()
    wait_for("worker 1")
    print("done", os.getpid())
    """
    status, out, err = run(code, "--ps=1", "--workers=2", "--max_restarts=1", "--logs", str(tmp_path / "logs"))
    assert (status, out) == (0, "")
    assert "worker 1 ended killed by SIGKILL; it is started again (0 more to go)" in err
    logs = {file.name: file.read_text() for file in (tmp_path / "logs").iterdir()}
    assert sorted(logs) == ["chief-0.log", "ps-0.log", "worker-0.log", "worker-1.log"]
    assert all(text.startswith("done") for text in logs.values())


@pytest.mark.slow
def test_a_worker_that_comes_back_too_late_holds_nobody_up(run):
    code = """
    if me == "worker 1":
        if not (here / "failed").exists():
            (here / "failed").touch()
            sys.exit(1)
        (here / "back").touch()
        time.sleep(1000)  # nobody will call it
    wait_for("back")
    """
    status, _, err = run(code, "--ps=1", "--workers=2", "--max_restarts=1")
    assert status == 0, err


KILLED_ONCE = """
if me == "worker 1" and not (here / "failed").exists():
    (here / "failed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_by_default_a_lost_worker_is_started_again_and_the_job_goes_on(run):
    code = f"""{KILLED_ONCE}
if me == "worker 1":
    (here / "back").touch()
wait_for("back")
print("done")
"""
    status, out, err = run(code, "--ps=1", "--workers=2")
    assert (status, out.count("done")) == (0, 4), err
    assert err.splitlines() == [
        "launch: worker 1 ended killed by SIGKILL; it is started again (2 more to go)",
        "launch: when chief 0 is lost, the job ends; when a worker is lost, the job goes on, and the task is started "
        "again in its place; when a ps is lost, the task is started again in its place, and a fit with a Checkpoint "
        "goes on from it, else the job ends",
    ]


@pytest.mark.slow
def test_what_a_lost_worker_has_started_is_gone_when_it_is_started_again(run):
    """It would have its port, for example. What the others have started is left alone."""
    code = """
    if me == "worker 1" and (here / "child").exists():
        child = pathlib.Path("/proc", (here / "child").read_text(), "stat")
        print("child:", child.read_text().split()[2] if child.exists() else "Z")
        (here / "back").touch()
    elif me == "worker 1":
        (here / "child").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
        os.kill(os.getpid(), signal.SIGKILL)
    elif me == "worker 0":
        child = subprocess.Popen(["sleep", "1000"])
        wait_for("back")
        print("child:", child.poll())
        child.kill()
    wait_for("back")
    """
    status, out, err = run(code, "--ps=1", "--workers=2")
    assert status == 0, err
    assert sorted(out.splitlines()) == ["[worker 0] child: None", "[worker 1] child: Z"]


@pytest.mark.slow
def test_a_restarted_worker_that_ends_with_2_was_called_rightly_before(run):
    """It has met something else, as a port that is still in use."""
    code = """
    if me == "worker 1":
        number = len(list(here.glob("start *")))
        (here / f"start {number}").touch()
        if number < 2:
            sys.exit(1 + number)
    wait_for("start 2")
    """
    status, _, err = run(code, "--ps=1", "--workers=2")
    assert status == 0, err
    assert err.count("when a worker is lost, the job goes on") == 1  # said once
    assert "worker 1 ended with status 2; it is started again (1 more to go)" in err


@pytest.mark.parametrize("coordinators_status", [0, 5])
def test_a_worker_that_is_not_started_again_never_ends_the_job(run, coordinators_status):
    code = f"""{KILLED_ONCE}
wait_for("failed")
if me == "chief 0":
    time.sleep(0.5)
    sys.exit({coordinators_status})
"""
    status, _, err = run(code, "--ps=1", "--workers=2", "--max_restarts=0")
    assert status == coordinators_status
    assert "launch: worker 1 ended killed by SIGKILL; it is not started again\n" in err


@pytest.mark.slow
def test_workers_that_always_fail_are_started_three_times_again_in_all(run):
    code = """
    if task["type"] == "worker":
        number = len(list(here.glob("failure *")))
        (here / f"failure {number} {me}").touch()
        sys.exit(1)
    if me == "ps 0":
        sys.exit(0)
    time.sleep(6)
    """
    status, _, err = run(code, "--ps=1", "--workers=2")
    assert status == 0, err
    assert err.count("it is started again") == 3
    assert err.count("ended with status 1; it is not started again") == 2


@pytest.mark.slow
@pytest.mark.parametrize("coordinators_status", [0, 5])
def test_the_coordinator_ends_while_a_worker_waits_for_its_restart(run, coordinators_status):
    code = f"""{KILLED_ONCE}
wait_for("failed")
if me == "chief 0":
    time.sleep(0.2)
    sys.exit({coordinators_status})
if me == "worker 0":
    time.sleep(0.3)
"""
    status, _, err = run(code, "--ps=1", "--workers=2")
    assert status == coordinators_status, err
    assert err.count("it is started again") == 1


@pytest.mark.slow
def test_a_worker_that_fails_after_the_coordinator_has_ended_changes_nothing(run):
    code = """
    if me == "chief 0":
        sys.exit(0)
    if me == "worker 0":
        time.sleep(1)
        sys.exit(7)
    """
    status, _, err = run(code, "--ps=1", "--workers=1")
    assert (status, err) == (0, "launch: worker 0 ended with status 7, after chief 0 had ended\n")


def test_a_worker_with_a_wrong_command_ends_the_job(run):
    status, _, err = run("sys.exit(2) if me == 'worker 1' else time.sleep(1000)", "--ps=1", "--workers=2")
    assert (status, err.count("again")) == (2, 0)


def test_a_server_that_its_coordinator_cannot_do_without_has_failed_first(run):
    """The coordinator ends while the one in its place is about to start, or has started."""
    for seconds in (0.3, 1.5):
        code = f"""
        if me == "ps 0" and not (here / "lost {seconds}").exists():
            (here / "lost {seconds}").touch()
            print("why", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if me == "chief 0":
            wait_for("lost {seconds}")
            time.sleep({seconds})
            sys.exit(93)
        time.sleep(1000)
        """
        status, _, err = run(code, "--ps=1", "--workers=1")
        assert status == 137
        assert "launch: ps 0 (pid " in err
        assert err.endswith("failed first, killed by SIGKILL; its last lines:\n    why\n")


SERVER_LOST_ONCE = """
if me == "ps 0" and not (here / "lost").exists():
    (here / "lost").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_is_lost_takes_no_restart_of_the_job_from_it(run):
    """What was lost with a server may be had by a restart of the whole job alone."""
    code = f"""{SERVER_LOST_ONCE}
if me == "chief 0":
    wait_for("lost")
    if not (here / "again").exists():
        (here / "again").touch()
        time.sleep(1.5)
        sys.exit(93)
"""
    status, _, err = run(code, "--ps=1", "--workers=1", "--max_restarts=1")
    assert status == 0, err


def test_a_coordinator_that_fails_after_a_server_was_lost_may_have_failed_itself(run):
    """With a status that says nothing of another task."""
    code = f"""{SERVER_LOST_ONCE}
if me == "chief 0":
    wait_for("lost")
    time.sleep(0.5)
    sys.exit(3)
time.sleep(1000)
"""
    status, _, err = run(code, "--ps=1", "--workers=1")
    assert status == 3
    assert "launch: chief 0 (pid " in err


@pytest.mark.slow
def test_a_coordinator_that_is_stopped_is_what_has_failed(run):
    """The others have lost it, and cannot be started again for it; the job can."""
    code = """
    if me == "chief 0" and not (here / "stopped").exists():
        (here / "stopped").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    if me != "chief 0":
        wait_for("stopped")
        if not (here / f"again {me}").exists():
            (here / f"again {me}").touch()
            sys.exit(93)
    """
    status, _, err = run(code, "--ps=1", "--workers=1", "--max_restarts=1", "--grace=1")
    assert status == 0, err
    assert " has lost chief 0, which is stopped" in err
    assert "chief 0 (pid " in err
    assert "the job is started again (0 more to go)" in err


@pytest.mark.parametrize("lost", ["ps 0", "chief 0", "evaluator 0"])
def test_the_loss_of_another_task_ends_the_job(run, lost):
    code = f"if me == {lost!r}: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)"
    status, _, err = run(code, "--ps=1", "--workers=1", "--evaluator")
    assert status == 137
    assert f"launch: {lost} (pid " in err


def test_without_servers_a_lost_worker_ends_the_job(run):
    status, _, err = run(
        "os.kill(os.getpid(), signal.SIGKILL) if me == 'worker 1' else time.sleep(1000)", "--workers=2"
    )
    assert (status, err.count("again")) == (137, 0)


def test_logs_are_new_and_shown_if_wanted(run, tmp_path):
    for _ in range(2):
        status, out, err = run("print('one'); print('two', file=sys.stderr)", f"--logs={tmp_path}/logs", "--tee")
        assert (status, out, err) == (0, "[worker 0] one\n", "[worker 0] two\n")
        assert sorted((tmp_path / "logs" / "worker-0.log").read_text().split()) == ["one", "two"]


def test_a_failure_is_told_though_everything_goes_to_files(run, tmp_path):
    status, out, err = run("print('why'); sys.exit(5)", f"--logs={tmp_path}/logs")
    assert (status, out) == (5, "")
    assert "why" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--logs=/proc/nowhere"], "--logs=/proc/nowhere cannot be written"),
        (["--tee"], "add --logs=DIR"),
        (["--max_restarts=-1"], "max_restarts is -1"),
        (["--threads=-1"], "threads is -1"),
        (["--hosts=a"], "`launch ssh` goes there"),
    ],
)
def test_what_cannot_be(run, options, said):
    status, out, err = run("print('runs')", *options)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.slow
def test_threads(run):
    code = "print(os.environ.get('TF_NUM_INTRAOP_THREADS'), os.environ.get('OMP_NUM_THREADS'))"
    cores = len(os.sched_getaffinity(0))
    assert run(code)[1] == f"[worker 0] {cores} {cores}\n"
    assert run(code, "--threads=3")[1] == "[worker 0] 3 3\n"
    assert run(code, "--threads=0")[1] == "[worker 0] None None\n"
    assert run(code, "--threads=3", env={"OMP_NUM_THREADS": "5"})[1] == "[worker 0] 3 5\n"
    assert run(code, f"--workers={2 * cores}")[1].splitlines()[0].endswith(" 1 1")


def test_a_network_of_its_own(start, tmp_path):
    if why := network_namespace.refusal():
        pytest.skip(f"no network namespaces here: {why}")
    code = """
    import socket
    if me == "worker 1":
        server = socket.create_server(("", 2223))
        (here / "listens").touch()
        server.accept()
    else:
        wait_for("listens")
        print([name for _, name in socket.if_nameindex()], "listens", flush=True)
        wait_for("looked")
        socket.create_connection(("127.0.0.1", 2223))
    """
    job = start(code, "--workers=2", "--isolate")
    out = job.until("listens")
    assert "'lo'" in out
    assert "'eth0'" not in out
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", 2223)) != 0
    (tmp_path / "looked").touch()
    assert job.finish()[0] == 0


def test_where_there_can_be_no_network_of_its_own_that_is_said(tmp_path):
    code = """
import sys
from tf2dist.launch import network_namespace
from tf2dist.launch.backends import local
network_namespace.refusal = lambda: "Operation not permitted"
sys.exit(local.run(["this"], preload=(), isolate=True))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr == (
        "launch: no private network here (operation not permitted): other machines can reach the job's ports\n"
    )


def test_a_trial_for_a_network_of_its_own_ends(monkeypatch):
    monkeypatch.setattr(network_namespace, "enter_new", signal.pause)
    monkeypatch.setattr(network_namespace, "_TRIAL_TIMEOUT", 0.05)
    assert network_namespace.refusal() == "a trial took longer than 0.05 s"


def test_a_dry_run(run):
    options = "--ps=1", "--workers=2", "--dry_run", "--start_timeout=7", "--stall_timeout=600"
    status, out, err = run("sys.exit(1)", *options, arguments=["a b"])
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.partition(" cd ")[0] for line in lines] == [
        f"[{task}] localhost:" for task in ("chief 0", "worker 0", "worker 1", "ps 0")
    ]
    assert all("TF2DIST_STALL_TIMEOUT=600 " in line for line in lines)
    assert all("TF2DIST_START_TIMEOUT=7 " in line and line.endswith("script.py 'a b'") for line in lines)
    # It is what one could type.
    config = lines[3].partition("TF_CONFIG=")[2]
    assert '"task": {"type": "ps", "index": 0}' in config
