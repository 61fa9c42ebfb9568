"""What a process does when it gets SIGTERM, or is told that its job is to stop."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.threads import background
from tf2dist.cluster.roles import Role
from tf2dist.errors import START_AGAIN, Preempted, UsageError
from tf2dist.runtime import session
from tf2dist.runtime.preemption import Preemption
from tf2dist.runtime.session import Session

DEADLINE = 60.0
pytestmark = pytest.mark.timeout(120)
HEAD = """
import atexit, ctypes, os, signal, sys, threading, time
from tf2dist.runtime import preemption, sigterm
sigterm.SAME_REQUEST = 0.0
def say(text):
    os.write(1, f"{text}\\n".encode())
job = preemption.Preemption(by_signal=True)
job.tell_by(lambda: say("told"))
atexit.register(job.leave)
"""


class Program:
    """A program under way, which says where it is in lines."""

    def __init__(self, code, before=(), **env):
        inherited = {name: value for name, value in os.environ.items() if name != "TF2DIST_PREEMPTIBLE"}
        env = {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **env}
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", HEAD + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=env,
        )  # fmt: skip

    def until(self, line):
        found = self.process.stdout.readline()
        assert found == f"{line}\n", (found, self.process.stderr.read() if not found else "")

    def ask(self):
        self.process.send_signal(signal.SIGTERM)

    def ends(self):
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err


@pytest.fixture
def program():
    started = []

    def start(code, before=(), **env):
        started.append(Program(code, before, **env))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


TRAINS = """
with job.training():
    say("trains")
    while not job.stops_training:
        time.sleep(0.01)
    say("saves")
    {body}
    job.saved()
    job.end()
"""


def test_a_training_saves_and_ends(program):
    job = program(TRAINS.format(body=""))
    job.until("trains")
    job.ask()
    status, out, _ = job.ends()
    assert status == START_AGAIN
    assert sorted(out.split()) == ["saves", "told"]


def test_a_second_signal_ends_at_once(program):
    job = program(TRAINS.format(body="time.sleep(1000)"))
    job.until("trains")
    job.ask()
    assert {job.process.stdout.readline() for _ in range(2)} == {"told\n", "saves\n"}
    job.ask()
    assert job.ends()[0] == -signal.SIGTERM


def test_a_second_signal_ends_what_waits_outside_of_python(program):
    """Where Python runs no handler."""
    mutex = "libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64); libc.pthread_mutex_lock(lock)"
    job = program(f"{mutex}\nwith job.training():\n    say('waits')\n    libc.pthread_mutex_lock(lock)")
    job.until("waits")
    job.ask()
    job.until("told")
    job.ask()
    assert job.ends()[0] == -signal.SIGTERM


def test_two_signals_at_once_are_one(program):
    """A platform that signals all processes of a service also signals the launcher, which passes it on."""
    code = """
sigterm.SAME_REQUEST = 1000.0
arrived, handle = [], sigterm.SigtermHandler._arrived
def note(handler):
    handle(handler)
    arrived.append(handler)
sigterm.SigtermHandler._arrived = note
"""
    job = program(code + TRAINS.format(body="while len(arrived) < 2: time.sleep(0.01)"))
    job.until("trains")
    job.ask()
    assert {job.process.stdout.readline() for _ in range(2)} == {"told\n", "saves\n"}
    job.ask()
    assert job.ends()[0] == START_AGAIN


@pytest.mark.parametrize("code", ["job.handle_sigterm()", "with job.training(): pass"])
def test_what_has_nothing_saved_ends_as_ever(program, code):
    job = program(f"{code}\nsay('runs')\ntime.sleep(1000)")
    job.until("runs")
    job.ask()
    assert job.ends()[:2] == (-signal.SIGTERM, "")


def test_what_has_all_saved_ends_to_be_started_again(program):
    job = program(
        "atexit.register(lambda: say(job.leave()))\njob.at_end(lambda: say('notes'))\n"
        "with job.training(): pass\njob.saved()\nsay('runs')\ntime.sleep(1000)"
    )
    job.until("runs")
    job.ask()
    status, out, _ = job.ends()
    assert status == START_AGAIN
    assert [line for line in out.split() if line != "told"] == ["notes", "75"]
    assert out.count("told") == 1


def test_who_says_good_bye_is_not_interrupted(program):
    job = program(
        "with job.training(): pass\njob.saved()\nassert job.leave() == 0\nsay('leaves')\n"
        "while not job.ends_job: time.sleep(0.01)"
    )
    job.until("leaves")
    job.ask()
    assert job.ends()[0] == 0


def test_what_a_program_does_at_its_exit_is_not_interrupted(program):
    """It has ended well, and nobody starts it again."""
    job = program(
        "atexit.unregister(job.leave)\nmarks = []\njob.at_end(lambda: marks.append('noted'))\n"
        "def last():\n    say('at exit')\n    while not job.ends_job: time.sleep(0.01)\n    time.sleep(0.1)\n"
        "    say(marks)\natexit.register(last)\nwith job.training(): pass\njob.saved()"
    )
    job.until("at exit")
    job.ask()
    status, out, error = job.ends()
    assert (status, out.split()) == (0, ["told", "[]"]), error
    assert "ends with status 75" not in error


def test_a_handler_of_the_programs_own_asks_while_its_main_thread_does(program):
    job = program(
        "signal.signal(signal.SIGTERM, lambda *_: say(job.request('the handler')))\n"
        "job.tell_by(lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "with job.training(): say(job.request('the program'))"
    )
    status, out, _ = job.ends()
    assert (status, out.split()) == (0, ["True", "True"])


@pytest.mark.parametrize("handler", ["lambda *_: sys.exit(9)", "signal.SIG_IGN"])
def test_a_handler_of_the_programs_own_stays(program, handler):
    job = program(
        f"signal.signal(signal.SIGTERM, {handler})\nbefore = signal.getsignal(signal.SIGTERM)\n"
        "with job.training():\n    say(signal.getsignal(signal.SIGTERM) is before)"
    )
    job.until("True")
    assert job.ends()[0] == 0


@pytest.mark.parametrize("first", ["job.handle_sigterm()", "with job.training(): pass"])
def test_a_handler_that_the_program_installs_later_takes_its_place(program, first):
    """Nothing else happens at the signal, though the system still tells the thread of each."""
    job = program(
        f"{first}\narrived = []\nsignal.signal(signal.SIGTERM, lambda *_: arrived.append(time.monotonic()))\n"
        "say('waits')\nwhile not arrived or time.monotonic() - arrived[0] < 0.5: time.sleep(0.01)\n"
        "say([len(arrived), bool(job.ends_job or job.stops_training)])"
    )
    job.until("waits")
    job.ask()
    status, out, _ = job.ends()
    assert (status, out) == (0, "[1, False]\n")


@pytest.mark.parametrize(("value", "handled"), [("1", True), ("0", False), ("", False), (None, False)])
def test_nobody_handles_a_signal_who_was_not_told_to(program, value, handled):
    env = {} if value is None else {"TF2DIST_PREEMPTIBLE": value}
    job = program(
        "with preemption.Preemption().training(): say(signal.getsignal(signal.SIGTERM) != signal.SIG_DFL)", **env
    )
    job.until(str(handled))


def test_a_switch_that_is_none(monkeypatch):
    monkeypatch.setenv("TF2DIST_PREEMPTIBLE", "yes")
    with pytest.raises(UsageError, match="TF2DIST_PREEMPTIBLE is 'yes'; it must be 1 or 0"):
        Preemption().handle_sigterm()


def test_a_switch_that_is_none_is_found_before_tensorflow_is_imported(program):
    job = program(
        "import tf2dist\ntry: tf2dist.join('one')\nexcept ValueError: say('tensorflow' in sys.modules)",
        TF2DIST_PREEMPTIBLE="yes",
    )
    job.until("False")


def test_processes_that_a_program_forks_are_its_own(program):
    """The end of one that reads its data, say, asks for nothing."""
    job = program("""
job.handle_sigterm()
pid = os.fork()
if not pid:
    time.sleep(1000)
os.kill(pid, signal.SIGTERM)
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
say(bool(job.ends_job or job.stops_training))
""")
    job.until("-15")
    job.until("False")


def test_a_later_handler_of_ours_takes_the_place_of_an_earlier_one(program):
    """A server's, in process 1 of a container, where `join` has one from its beginning."""
    job = program(
        "job.handle_sigterm()\nlater = sigterm.SigtermHandler(lambda: say('later') or True, lambda: None)\n"
        "say(later.install())\ntime.sleep(1000)"
    )
    job.until("True")
    job.ask()
    job.until("later")
    job.ask()
    assert job.ends()[:2] == (-signal.SIGTERM, "")


def test_an_event_loop_keeps_its_pipe(program):
    """The signal is handled all the same."""
    job = program(
        "here, there = os.pipe2(os.O_NONBLOCK)\nsignal.set_wakeup_fd(there)\n"
        + TRAINS.format(body="say(signal.set_wakeup_fd(-1) == there)")
    )
    job.until("trains")
    job.ask()
    status, out, _ = job.ends()
    assert status == START_AGAIN
    assert sorted(out.split()) == ["True", "saves", "told"]


def as_process_1():
    """What starts a command as process 1 of a container, or why that cannot be here."""
    ways = ["unshare --pid --fork --kill-child", "unshare --user --map-root-user --pid --fork --kill-child"]
    for way in ways if shutil.which("unshare") else ():
        if subprocess.run([*way.split(), "true"], capture_output=True, check=False).returncode == 0:
            return way.split()
    return None


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("with job.training():\n    ask()\n    while not job.stops_training: pass\n    job.saved()\n    job.end()", 75),
        (
            "with job.training():\n    ask()\n    while not job.stops_training: pass\n    ask()\n    time.sleep(1000)",
            143,
        ),
        ("job.handle_sigterm()\nask()\ntime.sleep(1000)", 143),
    ],
)
def test_as_process_1_of_a_container(program, code, status):
    """Which the kernel protects from signals that it does not handle."""
    before = as_process_1()
    if before is None:
        pytest.skip("no process namespaces here")
    # Another process of the container, which is no child that the interpreter waits for.
    ask = "def ask():\n    import subprocess\n    subprocess.run(['kill', '-TERM', '1'])\n"
    job = program(f"assert os.getpid() == 1\n{ask}{code}", before)
    assert job.ends()[0] == status


def test_a_loss_in_a_job_that_was_asked_to_stop_is_no_failure(monkeypatch):
    """Another peer may have ended before, since it was asked to, or its host is gone."""
    ended, noted = [], []

    def end(status):
        ended.append(status)
        raise SystemExit

    monkeypatch.setattr(session, "exit_now", end)
    monkeypatch.setattr(session.FailureReporter, "end_process", lambda self, why, status: ended.append(why))
    peer = Session(role=Role.PEER)
    peer.preemption.at_end(lambda: noted.append("noted"))
    peer.end_for_loss("first")
    peer.preemption.request("another peer was asked to stop")
    peer.end_for_loss("second")  # nothing that is saved, before the training
    assert ended == ["first", "second"]
    with peer.preemption.training():
        with peer.preemption.saving():
            lost = background(peer.end_for_loss, "third")
            assert not noted
            peer.preemption.at_end(lambda: noted.append("saved"))
        with pytest.raises(SystemExit):
            lost.result(DEADLINE)
    assert ended[2:] == [START_AGAIN]
    assert noted == ["saved", "noted"]
    peer.preemption.saved()
    with pytest.raises(SystemExit):
        peer.end_for_loss("fourth")
    with peer.preemption.training(), contextlib.suppress(Preempted):
        peer.preemption.end()  # its data has ended, say
    with pytest.raises(SystemExit):
        peer.end_for_loss("fifth")
    assert ended[3:] == [START_AGAIN] * 2


SESSION = "from tf2dist.runtime.session import Session\njob = Session()\n"


@pytest.mark.parametrize(("of_job", "status", "said"), [(0, 0, ""), (75, 75, "noted\n")])
def test_a_peer_ends_as_the_job_does(program, of_job, status, said):
    job = program(
        f"{SESSION}job.preemption.at_end(lambda: say('noted'))\njob.end_job_at_exit(lambda status: {of_job} or status)"
    )
    assert job.ends()[:2] == (status, said)


def test_a_program_exits_where_no_thread_can_be_started(program):
    """As in functions at exit, in Python 3.12."""
    job = program(
        "from tf2dist.runtime.process_exit import exit_now\ndef start(self): raise RuntimeError\n"
        "threading.Thread.start = start\nprint('flushed', end='')\nexit_now(7)"
    )
    assert job.ends()[:2] == (7, "flushed")


def test_a_training_in_a_thread_ends_the_program(program):
    """Where its exception ends no more than that thread."""
    job = program(
        f"{SESSION}job.end_job_at_exit()\ndef train():\n    with job.preemption.training():\n"
        "        job.preemption.request('somebody')\n        job.preemption.saved()\n        job.preemption.end()\n"
        "thread = threading.Thread(target=train)\nthread.start()\nthread.join()\nsay('goes on')"
    )
    assert job.ends()[:2] == (START_AGAIN, "goes on\n")


def test_others_are_told_once_whoever_asks_first():
    told = []
    job = Preemption()
    job.request("first")
    job.tell_by(lambda: told.append("told"))
    job.request("second")
    assert told == ["told"]


def test_the_task_that_leads_makes_the_file_that_a_batch_script_looks_for(monkeypatch, tmp_path):
    monkeypatch.setenv("TF2DIST_PREEMPTED_FILE", str(tmp_path / "mark"))
    for leads in (False, True):
        with pytest.raises(Preempted):
            Preemption(leads=leads).end()
        assert (tmp_path / "mark").exists() == leads


def test_an_offer_is_refused_where_nothing_is_saved():
    job = Preemption()
    assert not job.offer("worker 1 was asked to stop")
    with job.training():
        assert not job.stops_training
        assert background(job.offer, "worker 1 was asked to stop").result(DEADLINE)
        assert job.stops_training
