"""This process in its job: who reports a failure, who is told of it, and what the process ends with."""

import functools
import re
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import cast

import pytest

import tf2dist
from tests.threads import background
from tf2dist.cluster.roles import Role
from tf2dist.cluster.spec import Cluster, Task
from tf2dist.cluster.task_monitor import LeaderMonitor
from tf2dist.errors import UsageError
from tf2dist.runtime import failure_reporter, logging_setup, session
from tf2dist.runtime.session import Session

DEADLINE = 60.0
pytestmark = pytest.mark.timeout(120)


def run(code):
    """Status, standard output and standard error of a program."""
    command = [sys.executable, "-c", "import threading, sys, time\nfrom tf2dist.runtime import session\n" + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    return done.returncode, done.stdout, done.stderr


def test_alone(monkeypatch):
    monkeypatch.delenv("TF2DIST_START_TIMEOUT", raising=False)
    alone = Session()
    assert (alone.strategy, alone.cluster, alone.role, alone.is_evaluator) == (None, None, Role.SOLO, False)
    assert (alone.lost_tasks(), alone.wait_for_loss(0.0), alone.has_failed) == ([], "", False)
    assert alone.unused_workers() == set()
    assert alone.start_timeout == 120.0
    assert Session(start_timeout=3.0).start_timeout == 3.0


def test_callbacks_of_a_failure_are_called_once():
    called = []
    failing = Session()
    for number in (1, 2, 3):
        failing.on_failure(lambda number=number: called.append(number))
    forgotten = SimpleNamespace(failed=lambda: called.append("forgotten"))
    failing.on_failure(forgotten.failed)
    failing.forget(forgotten.failed)
    failing.forget(forgotten.failed)
    failing.on_failure(lambda: 1 / 0)
    failing.fail()
    failing.fail()
    assert sorted(called) == [1, 2, 3]
    assert failing.has_failed


@pytest.fixture
def ended(monkeypatch):
    """What the process was ended with, instead of ending it."""
    found = []
    monkeypatch.setattr(failure_reporter, "exit_now", found.append)
    monkeypatch.setattr(failure_reporter, "_uncaught_exception", lambda: None)
    return found


def test_the_monitor_reports_what_the_main_thread_does_not(ended, monkeypatch, capfd):
    monkeypatch.setattr(failure_reporter, "REPORT_GRACE", 0.1)
    logging_setup.log_to_stderr()
    called = []
    losing = Session()
    losing.on_failure(lambda: called.append("failed"))
    losing.end_for_loss("ps 0 is gone")
    assert (ended, called, capfd.readouterr().err) == ([1], ["failed"], "tf2dist: ps 0 is gone\n")


def test_what_hangs_does_not_hide_the_cause(ended, monkeypatch, capfd):
    """A callback that writes to a disk which does not answer, say."""
    monkeypatch.setattr(failure_reporter, "REPORT_GRACE", 0.1)
    monkeypatch.setattr(failure_reporter, "_CALLBACK_GRACE", 0.3)
    logging_setup.log_to_stderr()
    losing, never = Session(), threading.Event()
    losing.on_failure(never.wait)
    losing.end_for_loss("ps 0 is gone")
    assert ended == [1]
    assert capfd.readouterr().err.splitlines() == ["tf2dist: ps 0 is gone"]


def test_the_monitor_is_silent_once_the_main_thread_reports(ended, monkeypatch, capfd):
    monkeypatch.setattr(failure_reporter, "REPORT_GRACE", DEADLINE)
    monkeypatch.setattr(failure_reporter, "EXIT_GRACE", 0.05)
    logging_setup.log_to_stderr()
    losing = Session()
    ending = background(losing.end_for_loss, "ps 0 is gone")
    losing.fail()
    ending.result(DEADLINE)
    assert (ended, capfd.readouterr().err) == ([1], "")


def test_a_main_thread_that_fails_later_waits_for_the_end(ended, monkeypatch):
    monkeypatch.setattr(failure_reporter, "REPORT_GRACE", 0.0)
    losing = Session()
    losing.end_for_loss("ps 0 is gone")
    failing = background(losing.fail)
    with pytest.raises(TimeoutError):
        failing.result(0.3)


LOSS = "threading.Thread(target=session.current().end_for_loss, args=('ps 0 is gone',), daemon=True).start()\n"


def test_a_process_ends_also_while_its_main_thread_waits():
    code = 'print("before", end="")\n' + LOSS + "threading.Event().wait()"
    assert run(code) == (1, "before", "tf2dist: ps 0 is gone\n")


def test_an_exception_that_a_program_ends_with_is_the_only_report():
    """Also where it ends late: its threads are waited for."""
    code = "threading.Thread(target=time.sleep, args=(2,)).start()\n" + LOSS + "raise OSError('reset by ps 0')"
    status, out, err = run(code)
    assert (status, out) == (1, "")
    assert err.endswith("OSError: reset by ps 0\n")
    assert "is gone" not in err


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("", "end"),
        ("sys.exit(0)", "end"),
        ("sys.exit(3)", "end"),  # whoever runs the program may see it, as `python -m launch` does
        ("raise ValueError", "failed"),
        ("raise KeyboardInterrupt", "failed"),
        ("session.current().fail()", "failed"),
    ],
)
def test_the_job_is_done_unless_the_program_fails(end, said):
    code = (
        "session.current().on_failure(lambda: print('failed'))\n"
        "hook = sys.excepthook\n"
        "session.current().at_exit(lambda: print('end'))\n"
        "assert sys.excepthook is hook\n"
    )
    assert run(code + end)[1] == f"{said}\n"


def test_a_program_of_the_launcher_that_exits_with_an_error_has_failed(tmp_path):
    script = tmp_path / "script.py"
    for status, said in (("3", "failed"), ("'why'", "failed"), ("0", "end"), ("None", "end")):
        script.write_text(
            "import sys\nfrom tf2dist.runtime import session\n"
            "session.current().on_failure(lambda: print('failed'))\n"
            f"session.current().at_exit(lambda: print('end'))\nsys.exit({status})\n"
        )
        assert (
            run(f"from tf2dist.launch import user_program\nuser_program.run_as_main([{str(script)!r}])")[1]
            == f"{said}\n"
        )


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        ("tf2dist.errors.UsageError('no\\nsuch thing')", 2, "script.py, line 7: no such thing\n"),
        ("tf2dist.cluster.heartbeat.TaskLostError('ps 0 is gone')", 1, "script.py, line 7: ps 0 is gone\n"),
        ("ZeroDivisionError('theirs')", 1, None),
        ("tf2dist.errors.TrainingError('no') from ValueError('theirs')", 1, None),
    ],
)
def test_a_program_of_the_launcher_ends_in_one_line_that_names_its_place(tmp_path, raised, status, said):
    script = tmp_path / "script.py"
    script.write_text(
        "import tf2dist.errors, tf2dist.cluster.heartbeat\nfrom tf2dist.runtime import session\n"
        "session.current().on_failure(lambda: print('failed'))\n"
        "session.current().at_exit(lambda: print('end'))\n"
        f"def mistake():\n    import os\n    raise {raised}\nmistake()\n"
    )
    found = run(f"from tf2dist.launch import user_program\nuser_program.run_as_main([{str(script)!r}])")
    assert found[:2] == (status, "failed\n")
    if said is None:
        assert "Traceback (most recent call last)" in found[2]
        assert f'File "{script}", line 7' in found[2]
    else:
        assert found[2] == said


def test_a_hook_of_the_programs_own_gets_the_error(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, tf2dist.errors\nfrom tf2dist.runtime import session\n"
        "sys.excepthook = lambda kind, error, frames: print('seen', kind.__name__, frames.tb_lineno)\n"
        "raise tf2dist.errors.UsageError('no such thing')\n"
    )
    found = run(f"from tf2dist.launch import user_program\nuser_program.run_as_main([{str(script)!r}])")
    assert found == (2, "seen UsageError 4\n", "")


NO_FILE = "{{function_node __wrapped__ReadFile_device_/job:chief/replica:0/task:0/device:CPU:0}} missing; No such file"
NO_VARIABLE = (
    "Could not find variable a.\nAdditional GRPC error information from remote target /job:ps/replica:0/task:11"
)

NO_CONNECTION = (
    "Copy failed: Connection  reset by peer\nAdditional GRPC error information from remote target "
    "/job:ps/replica:0/task:0 while calling /tensorflow.WorkerService/RecvTensor:"
)


@pytest.mark.parametrize(
    ("error", "said", "lost", "line"),
    [
        ("UnavailableError", "said", "ps 0 is gone", "ps 0 is gone (UnavailableError)"),
        ("InternalError", "said", "ps 0 is gone", "ps 0 is gone (InternalError)"),
        ("UnavailableError", "said", "", None),
        (
            "UnavailableError",
            NO_CONNECTION,
            "",
            "the connection to ps 0 was lost: Copy failed: Connection reset by peer",
        ),
        ("UnavailableError", NO_CONNECTION.replace("Connection  reset by peer", "HTTP status 503"), "", None),
        ("UnavailableError", NO_CONNECTION, "ps 0 is gone", "ps 0 is gone (UnavailableError)"),
        ("InvalidArgumentError", "said", "ps 0 is gone", None),
        ("ResourceExhaustedError", "said", "ps 0 is gone", None),
        ("NotFoundError", NO_FILE, "worker 1 at a:1 is gone", None),  # which was made up for
        ("FailedPreconditionError", NO_FILE, "chief 1 at a:1 is gone", None),
        ("NotFoundError", NO_VARIABLE, "ps 1 at a:1 is gone", None),
        ("NotFoundError", NO_VARIABLE, "ps 11 at a:1 is gone", "ps 11 at a:1 is gone (NotFoundError)"),
    ],
)
def test_an_error_of_tensorflow_is_explained_by_a_loss_if_it_can_be(tf, error, said, lost, line):
    from tf2dist.runtime import error_explanation

    found = error_explanation.explain(getattr(tf.errors, error)(None, None, said), lambda limit: lost)
    assert found == (None if line is None else (1, line))


def test_an_error_in_an_interactive_shell_does_not_end_it():
    code = (
        "import atexit\nfrom tf2dist.runtime import failure_reporter\n"
        "atexit.register(lambda: print(failure_reporter._uncaught_exception()))\n"
    )
    assert run(f"{code}sys.ps1 = '>>> '\nraise ValueError('why')")[1] == "None\n"
    assert run(f"{code}raise ValueError('why')")[1] == "why\n"


@pytest.mark.parametrize(
    "survive",
    [
        # As Tkinter's for its callbacks, `report_callback_exception`.
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
        "    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__",
        "import code\ncode.InteractiveInterpreter().runsource('1 / 0')",
        "import code\ncode.InteractiveInterpreter().runsource('1 /')",
    ],
)
def test_an_error_that_a_program_survives_does_not_end_it(survive):
    code = "session.current().on_failure(lambda: print('failed'))\nsession.current().at_exit(lambda: print('end'))\n"
    status, out, _ = run(f"{code}def main():\n    " + survive.replace("\n", "\n    ") + "\nmain()\n")
    assert (status, out) == (0, "end\n")


def test_a_loss_is_waited_for():
    noticed = threading.Event()
    waiting = Session()
    assert waiting.wait_for_loss(DEADLINE) == ""  # nobody would notice one
    waiting.monitor_with(SimpleNamespace(first_loss=lambda limit: noticed.wait(limit) and "ps 0 is gone"))
    found = background(waiting.wait_for_loss, DEADLINE)
    noticed.set()
    assert found.result(DEADLINE) == "ps 0 is gone"


@pytest.mark.parametrize("begin", [functools.partial(tf2dist.join, "ps"), tf2dist.connect], ids=["join", "connect"])
def test_a_process_takes_its_place_once(begin, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as mine:  # as this process's TensorFlow does
        jobs = {"chief": (f"127.0.0.1:{mine.getsockname()[1]}",), "ps": ("127.0.0.1:1",), "worker": ("127.0.0.1:2",)}
        cluster = Cluster(jobs, Task("chief", 0))
        joined = Session(cluster, Role.COORDINATOR)
        monkeypatch.setattr(session, "_current", joined)
        with pytest.raises(UsageError, match=r"port .* is in use"):  # the call before has failed
            begin(cluster=cluster, start_timeout=0.1)
        joined.monitor_with(cast("LeaderMonitor", object()))
        monkeypatch.setattr(session, "_current", joined)
        with pytest.raises(UsageError, match="this process is chief 0 of a job already; call "):
            begin(cluster=cluster, start_timeout=0.1)
        assert session.current() is joined


@pytest.mark.parametrize(
    ("given", "text", "said"),
    [
        (0, None, "min_workers=0; it must be from 1 to 2, the number of workers that the cluster has"),
        (3, None, "min_workers=3; it must be from 1 to 2"),
        ("1", None, "min_workers='1'; it must be from 1 to 2"),
        (True, None, "min_workers=True; it must be from 1 to 2"),
        (None, "3", "TF2DIST_MIN_WORKERS is 3; it must be from 1 to 2"),
        (None, "few", "TF2DIST_MIN_WORKERS is 'few'; it must be a whole number above 0"),
    ],
)
def test_with_how_many_workers_no_job_begins(monkeypatch, given, text, said):
    if text is not None:
        monkeypatch.setenv("TF2DIST_MIN_WORKERS", text)
    cluster = Cluster({"chief": ("a:1",), "worker": ("b:1", "c:1"), "ps": ("d:1",)}, Task("chief", 0))
    with pytest.raises(UsageError, match=re.escape(said)):
        session.join("ps", cluster=cluster, min_workers=given)


def test_other_strategies_begin_with_all_workers(monkeypatch):
    with pytest.raises(UsageError, match=r"^min_workers=1: strategy one begins with all of its workers; ps can"):
        session.join("one", min_workers=1)
