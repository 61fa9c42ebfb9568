"""The life and death of a group, seen from outside."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from tests.conftest import every_third

TROUBLEMAKER = """
# Something that survives its parent, its process group and a polite request.
subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
     "print('grandchild ready', flush=True); time.sleep(1000)"],
    start_new_session=True)
"""


def state(pid):
    """Its state's letter in /proc; Z if it is gone, or is just going."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def pids(text):
    """What the processes have printed as "NAME pid N"."""
    return {name: int(pid) for name, pid in re.findall(r"^\[.*?\] (\w+ \d+) pid (\d+)$", text, re.MULTILINE)}


def test_lines_of_all_are_shown_in_order_with_their_names(run):
    status, out, err = run(
        """
        for number in range(100):
            print("out", number)
            print("err", number, file=sys.stderr)
        """,
        "--workers=2",
    )
    assert status == 0
    for worker in ("[worker 0] ", "[worker 1] "):
        for text, kind in ((out, "out"), (err, "err")):
            lines = [line for line in text.splitlines() if line.startswith(worker)]
            assert lines == [f"{worker}{kind} {number}" for number in range(100)]


def test_eight_processes_never_mix_their_lines(run):
    status, out, _ = run("for _ in range(500): print(me[-1] * 999)", "--workers=8")
    assert status == 0
    assert sorted(out.splitlines()) == sorted(f"[worker {n}] {str(n) * 999}" for n in range(8) for _ in range(500))


def test_a_megabyte_without_a_newline_and_bytes_that_are_no_text(start):
    job = start("sys.stdout.buffer.write(b'x' * 1_000_000); sys.stderr.buffer.write(b'\\xff\\n')")
    out, err = job.process.communicate(timeout=60)
    assert (job.process.returncode, out, err) == (0, b"[worker 0] " + b"x" * 1_000_000 + b"\n", b"[worker 0] \xff\n")


def test_lines_are_seen_when_they_are_written(start):
    job = start("print('hello'); wait_for('go')")
    job.until("hello")
    pathlib.Path(job.process.args[-1]).with_name("go").touch()
    assert job.finish()[0] == 0


@pytest.mark.parametrize(
    ("code", "status", "how"),
    [
        ("sys.exit(7)", 7, "with status 7"),
        ("sys.exit('a reason')", 1, "with status 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
        ("os.abort()", 134, "killed by SIGABRT"),
        ("os.kill(os.getpid(), 40)", 168, "killed by signal 40"),  # a real-time signal has no name
        ("sys.exit(2)", 2, "with status 2"),
    ],
)
def test_a_failure_ends_the_others_and_its_status_is_handed_on(run, code, status, how):
    found, _, err = run(f"if me != 'worker 1': time.sleep(1000)\nprint('last words')\n{code}", "--workers=3")
    assert found == status
    assert re.search(rf"^launch: worker 1 \(pid \d+\) failed first, {how}; its last lines:\n    last words$", err, re.M)


@pytest.mark.slow
def test_only_the_last_lines_are_repeated(run):
    _, _, err = run("for number in range(100): print('line', number)\nsys.exit(1)")
    assert err.splitlines()[1:] == [f"    line {number}" for number in range(80, 100)]


@pytest.mark.slow
def test_the_earliest_failure_is_reported_even_when_the_helper_is_late(start, tmp_path):
    job = start("print(me, 'pid', os.getpid()); wait_for(me); sys.exit(10 + task['index'])", "--workers=4")
    found = pids(job.until(" pid ", times=4))
    helper = job.helper()
    os.kill(helper, signal.SIGSTOP)
    for name in ("worker 2", "worker 0", "worker 3"):
        (tmp_path / name).touch()
        while state(found[name]) != "Z":
            time.sleep(0.01)
    os.kill(helper, signal.SIGCONT)
    status, _, err = job.finish()
    assert status == 12
    assert "launch: worker 2 (pid" in err


@pytest.mark.slow
def test_what_ignores_sigterm_is_killed_after_the_grace(run):
    code = """
    if me == "worker 1":
        wait_for("ignoring")
        sys.exit(5)
    signal.signal(signal.SIGTERM, lambda *_: print("got SIGTERM"))
    (here / "ignoring").touch()
    while True:
        time.sleep(1)
    """
    status, out, _ = run(code, "--workers=2", "--grace=3")
    assert (status, out) == (5, "[worker 0] got SIGTERM\n")


def test_a_full_disk_under_the_output_is_said_where_it_can_be(start):
    with open("/dev/full", "wb") as full:
        status, _, err = start("print('hello'); time.sleep(1000)", "--workers=2", stdout=full).finish()
    assert (status, err) == (1, "launch: the output cannot be written: No space left on device\n")


def test_a_time_limit_of_months(run):
    assert run("print('hello')", f"--timeout={90 * 86400}") == (0, "[worker 0] hello\n", "")


@pytest.mark.slow
def test_the_launcher_is_killed_before_it_has_read_an_event(start, tmp_path):
    """Its helper ends what a task of the job has started, too."""
    code = """
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    print(me, "pid", os.getpid())
    wait_for(me)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    job = start(code, "--workers=2")
    found = pids(job.until(" pid ", times=2))
    os.kill(job.process.pid, signal.SIGSTOP)
    (tmp_path / "worker 1").touch()
    while state(found["worker 1"]) != "Z":
        time.sleep(0.01)
    time.sleep(0.3)  # for the helper's event, which nobody reads
    os.kill(job.process.pid, signal.SIGKILL)
    assert job.all_gone()


@every_third("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_the_job(start, signum):
    job = start(
        TROUBLEMAKER + "print('ready'); time.sleep(1000)",
        "--ps=1",
        "--workers=2",
        "--grace=0.5",
        start_new_session=True,
    )
    job.until("grandchild ready", times=4)
    os.killpg(job.process.pid, signum)  # as a terminal does
    status, _, err = job.finish()
    assert status == 128 + signum
    assert f"launch: ended by {signum.name}" in err
    assert "Traceback" not in err
    assert job.left() == []


def test_a_signal_while_modules_are_imported(start, tmp_path):
    (tmp_path / "slow.py").write_text(f"open({str(tmp_path / 'importing')!r}, 'w')\nimport time; time.sleep(1000)")
    job = start("", preload="slow", env={"PYTHONPATH": str(tmp_path)})
    while not (tmp_path / "importing").exists():
        time.sleep(0.01)
    job.process.send_signal(signal.SIGINT)
    status, out, err = job.finish()
    assert (status, out) == (130, "")
    assert "Traceback" not in err


SAVES = """
    import threading
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    print("ready")
    while not asked.is_set():
        time.sleep(0.01)
    time.sleep(3)
    print("saved")
"""


@pytest.mark.slow
def test_a_signal_to_all_processes_at_once_leaves_them_their_time(start):
    job = start(SAVES, "--workers=2", "--grace=100")
    job.until("ready", times=2)
    for pid in {job.process.pid, *job.left()}:
        os.kill(pid, signal.SIGTERM)
    status, out, err = job.finish()
    assert (status, out.count("saved")) == (143, 2), err
    assert job.left() == []


@pytest.mark.slow
def test_the_two_signals_of_a_session_that_is_closed_are_one(start):
    job = start(SAVES, "--grace=100")
    job.until("ready")
    job.process.send_signal(signal.SIGTERM)
    job.process.send_signal(signal.SIGHUP)
    status, out, err = job.finish()
    assert (status, out.count("saved")) == (143, 1), err


def test_a_second_interrupt_kills_at_once(start):
    job = start("signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(1000)", "--grace=1000")
    job.until("ready")
    job.process.send_signal(signal.SIGINT)
    assert b"once more" in job.process.stderr.readline()
    job.process.send_signal(signal.SIGINT)
    assert job.finish()[0] == 130
    assert job.left() == []


def test_nothing_survives_when_the_launcher_is_killed(start):
    job = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)" + TROUBLEMAKER + "time.sleep(1000)", "--workers=2")
    job.until("grandchild ready", times=2)
    assert len(job.left()) == 6
    job.process.kill()
    assert job.all_gone()


def test_nothing_survives_when_the_launcher_is_killed_while_modules_are_imported(start, tmp_path):
    (tmp_path / "slow.py").write_text(f"open({str(tmp_path / 'importing')!r}, 'w')\nimport time; time.sleep(1000)")
    job = start("", preload="slow", env={"PYTHONPATH": str(tmp_path)})
    while not (tmp_path / "importing").exists():
        time.sleep(0.01)
    job.process.kill()
    assert job.all_gone()


def test_nothing_survives_when_the_helper_is_killed(start):
    job = start(TROUBLEMAKER + "time.sleep(1000)", "--workers=2")
    job.until("grandchild ready", times=2)
    os.kill(job.helper(), signal.SIGKILL)
    status, _, err = job.finish()
    assert status == 1
    assert re.search(r"^launch: the helper \(pid \d+\) .* failed, killed by SIGKILL$", err, re.MULTILINE)
    assert job.left() == []


def test_what_a_program_leaves_behind_is_ended_with_the_job(start):
    job = start(TROUBLEMAKER, "--grace=0.5")
    assert job.finish()[0] == 0
    assert job.left() == []


@pytest.mark.slow
def test_what_forks_and_ends_all_the_time_is_not_overlooked(start):
    code = """
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for _ in range(500):
            if os.fork():
                os._exit(0)
    """
    job = start(code)
    assert job.finish()[0] == 0
    assert job.left() == []


@pytest.mark.slow
def test_what_a_program_has_started_gets_the_signal_after_it(start):
    """A program that saves before it ends still needs what it has started."""
    code = """
    asks = "trap 'echo child was asked; exit' TERM; echo ready; while true; do sleep 0.1; done"
    def save(*_):
        time.sleep(0.5)
        print("saved", flush=True)
        os._exit(0)
    signal.signal(signal.SIGTERM, save)  # before the child says that it is ready
    subprocess.Popen(["sh", "-c", asks])
    time.sleep(1000)
    """
    job = start(code)
    job.until("ready")
    job.process.terminate()
    status, out, _ = job.finish()
    assert status == 143
    assert out.index("saved") < out.index("child was asked")


@pytest.mark.slow
def test_what_a_program_waits_for_gets_the_signal_when_that_has_ended(start):
    code = """
    subprocess.run(["sh", "-c", "trap 'echo child was asked; exit' TERM; echo ready; sleep 1000 & wait"])
    """
    job = start(code)
    job.until("ready")
    job.process.terminate()
    status, out, _ = job.finish()
    assert status == 143
    assert "child was asked" in out


def test_the_job_ends_when_time_is_up(run):
    status, _, err = run("time.sleep(1000)", "--workers=2", "--timeout=1")
    assert status == 1
    assert "launch: worker 0, worker 1 had not ended after 1 s\n" in err


def test_servers_may_end_after_the_coordinator(run, tmp_path):
    status, out, err = run(
        """
        if me == "chief 0":
            print("done")
            (here / "done").touch()
        else:
            wait_for("done")
            print("served")
        """,
        "--ps=1",
        "--workers=1",
    )
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == ["[chief 0] done", "[ps 0] served", "[worker 0] served"]


def test_the_job_ends_when_nobody_reads_its_output(start):
    job = start("print('line'); time.sleep(1000)", "--workers=2")
    job.until("line")
    job.process.stdout.close()
    job.process.wait(timeout=60)
    assert job.process.returncode == 141
    assert job.left() == []
    job.process.stdout = None


@pytest.mark.slow
def test_signals_work_while_nobody_reads_and_everything_waits(start):
    job = start("while True: print('x' * 1000)", "--workers=2", "--grace=1")
    while len(job.left()) < 4:
        time.sleep(0.01)
    while job.unread() < 32768:  # of 65536; pages of a pipe need not be full
        time.sleep(0.01)
    time.sleep(1)  # it is full, and what the launcher keeps has filled up too, most likely
    job.process.terminate()
    while len(job.left()) > 2:  # itself and what forks
        time.sleep(0.01)
    job.process.terminate()  # it waits for a reader
    job.process.wait(timeout=60)
    assert job.process.returncode == 143
    assert job.left() == []


@pytest.mark.slow
def test_a_slow_reader_gets_everything(start):
    job = start("for number in range(20_000): print(number, 'x' * 100)")
    time.sleep(1)
    status, out, _ = job.finish()
    assert status == 0
    assert [int(line.split()[2]) for line in out.splitlines()] == list(range(20_000))


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_names_are_coloured_on_a_terminal_unless_the_user_says_no(start, env, coloured):
    terminal, theirs = os.openpty()
    job = start("print('hello'); print('problem', file=sys.stderr)", env=env, stdout=theirs)
    status, _, err = job.finish()
    os.close(theirs)
    out = os.read(terminal, 4096).decode()
    os.close(terminal)
    assert status == 0
    assert err == "[worker 0] problem\n"  # no terminal there
    assert out == ("\x1b[36m[worker 0]\x1b[0m hello\r\n" if coloured else "[worker 0] hello\r\n")


def test_a_launcher_whose_output_is_closed_from_the_start(start):
    job = start("print('hello')", stdout=None, preexec_fn=lambda: os.close(1))
    assert job.finish() == (0, "", "")


def test_a_module_that_cannot_be_imported_is_reported(run):
    status, out, err = run("", preload="no_such_module_here")
    assert (status, out) == (1, "")
    assert err.startswith(
        "launch: the import of no_such_module_here failed, with status 1; its last lines:\n    Traceback"
    )
    assert "No module named 'no_such_module_here'" in err


def test_commands_of_the_system_can_be_supervised():
    code = """
import os
from tf2dist.launch.supervisor import Process, supervise
before = os.listdir("/proc/self/fd")
result = supervise(
    [Process("a", ["sh", "-c", "echo $WORD; exit 3"], {"WORD": "hello"}, command=True),
     Process("b", ["sleep", "1000"], command=True)], quiet_prefix_for="a")
assert result.status == 3, result
assert result.statuses == {"a": 3, "b": -15}, result
assert result.reason.startswith("a (pid "), result
assert supervise([Process("c", ["no-such-command"], command=True)]).status == 127
assert os.listdir("/proc/self/fd") == before
"""
    done = subprocess.run(["python", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello\n"
    assert "cannot run no-such-command: No such file or directory" in done.stderr


def test_what_the_launcher_says_between_two_attempts_may_have_no_reader():
    code = """
import os, sys
from tf2dist.launch.supervisor import Process, supervise
reader, writer = os.pipe()
os.close(reader)
sys.stderr = os.fdopen(writer, "w")
print(supervise([Process("a", ["false"], command=True)], max_restarts=1).status, flush=True)
os._exit(0)  # the end of Python would write there once more
"""
    done = subprocess.run(["python", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.slow
def test_servers_that_do_not_end_are_named():
    code = """
from tf2dist.launch.supervisor import Process, supervise
servers = [Process(f"ps {n}", ["sleep", "1000"], serves=True, command=True) for n in range(2)]
result = supervise([Process("chief 0", ["true"], command=True), *servers], drain=0.5)
assert result.status == 1, result
"""
    done = subprocess.run(["python", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    expected = "ps 0, ps 1 did not end within 0.5 s after the processes that they serve"
    assert done.stderr == f"launch: {expected}\n"


@pytest.mark.slow
@pytest.mark.parametrize("is_needed", [False, True])
def test_workers_that_do_not_end_are_named_and_the_job_is_done(is_needed):
    """A worker that is stopped, say: its coordinator was done without it, or with what it needed it for."""
    code = f"""
import os, signal, subprocess
from tf2dist.launch.supervisor import Process, supervise
stopped = Process(
    "worker 0", ["sh", "-c", "kill -STOP $$"], serves=True, coordinator="chief 0", command=True, is_needed={is_needed}
)
result = supervise([Process("chief 0", ["true"], command=True), stopped], drain=0.5, grace=0.5)
assert result.status == 0, result
"""
    done = subprocess.run(["python", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    expected = "worker 0 did not end within 0.5 s after the processes that they serve"
    assert done.stderr == f"launch: {expected}\n"


@pytest.mark.slow
def test_what_is_lost_with_its_host_is_done_without_if_that_can_be():
    code = """
from tf2dist.launch.supervisor import Process, supervise
def of(chief, **worker):
    return [Process("chief 0", ["sh", "-c", chief], command=True),
            Process("worker 0", ["sh", "-c", "exit 255"], serves=True, lost_status=255, command=True, **worker)]
result = supervise(of("sleep 1", coordinator="chief 0"), max_restarts=0)
assert (result.status, result.statuses) == (0, {"chief 0": 0, "worker 0": 255}), result
assert supervise(of("sleep 1; exit 3", coordinator="chief 0"), max_restarts=0).status == 3
assert supervise(of("sleep 1000")).status == 255
result = supervise(of("sleep 4", coordinator="chief 0"), max_restarts=1)
assert result.status == 0, result
"""
    done = subprocess.run(["python", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lost = "launch: worker 0 was lost with its host; the job goes on without it, if it can\n"
    assert done.stderr.count(lost) == 3
    assert done.stderr.count("started again (0 more to go)\n" + lost) == 1


LOST = 'os.environ["TF2DIST_LOSS_STATUS"]'  # what the launcher has asked for


def test_who_has_lost_another_one_waits_for_its_end_which_is_the_cause(run, tmp_path):
    """However late it is seen: a program may take its time between its last word to the others and its end."""
    code = f"""
    if me == "worker 0":
        (here / "lost").touch()
        sys.exit(int({LOST}))
    wait_for("lost")
    time.sleep(1.5)
    print("the cause", file=sys.stderr)
    sys.exit(5)
    """
    status, _, err = run(code, "--workers=2")
    assert status == 5
    assert re.search(
        r"^launch: worker 1 \(pid \d+\) failed first, with status 5; its last lines:\n    the cause$", err, re.M
    )


@pytest.mark.slow
def test_who_has_lost_a_task_that_does_not_end_has_failed(run):
    status, _, err = run(f"sys.exit(int({LOST})) if me == 'worker 0' else time.sleep(1000)", "--workers=2")
    assert status == 1
    assert re.search(r"^launch: worker 0 \(pid \d+\) failed first, with status 1", err, re.M)


@pytest.mark.parametrize("other", ["0", LOST])
def test_who_has_lost_a_task_that_has_not_failed_has_failed(run, other):
    status, _, err = run(f"sys.exit(int({LOST} if me == 'worker 0' else {other}))", "--workers=2")
    assert status == 1
    assert "failed first, with status 1" in err


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_worker_that_has_lost_its_coordinator_takes_no_restart(run, restarts):
    """The end of the coordinator is seen after it, and the job is started again as often as was asked for."""
    code = f"""
    if me == "worker 0":
        (here / "lost").touch()
        sys.exit(int({LOST}))
    if me == "chief 0":
        wait_for("lost")
        time.sleep(1.5)
        (here / "lost").unlink()
        sys.exit(5)
    time.sleep(1000)
    """
    status, _, err = run(code, "--ps=1", "--workers=1", f"--max_restarts={restarts}")
    assert status == 5
    assert "worker 0 ended" not in err
    assert [err.count(f"the job is started again ({n} more to go)") for n in range(restarts + 1)] == [1] * restarts + [
        0
    ]
    assert re.search(r"^launch: chief 0 \(pid \d+\) failed first, with status 5", err, re.M)


@pytest.mark.slow
def test_a_worker_that_has_lost_a_coordinator_which_runs_is_started_again(run):
    """The network between them was cut, say."""
    code = f"""
    if me == "worker 0" and not (here / "lost").exists():
        (here / "lost").touch()
        sys.exit(int({LOST}))
    (here / me).touch()
    if me != "ps 0":
        wait_for("worker 0")
    """
    status, _, err = run(code, "--ps=1", "--workers=1")
    assert status == 0, err
    assert err.splitlines()[0] == "launch: worker 0 ended with status 1; it is started again (2 more to go)"
    assert len(err.splitlines()) == 2  # and what the loss of each task means


@pytest.mark.slow
def test_of_those_that_have_lost_a_task_the_one_that_leads_is_named(run):
    """It says why; the others that it has ended."""
    code = f"""
    if me == "worker 1":
        (here / "lost").touch()
    else:
        wait_for("lost")
        time.sleep(0.5)
        print("what was lost first", file=sys.stderr)
    sys.exit(int({LOST}))
    """
    status, _, err = run(code, "--workers=2")
    assert status == 1
    assert re.search(r"^launch: worker 0 \(pid \d+\) failed first, .*\n    what was lost first$", err, re.M)
