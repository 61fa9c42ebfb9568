import os
import signal
import subprocess
import sys

import pytest

from tf2dist.runtime import tensorflow_import


def python(code, *, env=None, **kwargs):
    """Runs a program; its status, stdout and stderr."""
    env = {name: value for name, value in os.environ.items() if name not in tensorflow_import.TENSORFLOW_DEFAULTS} | (
        env or {}
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env, check=False, **kwargs
    )
    return done.returncode, done.stdout, done.stderr


def test_defaults_leave_what_the_user_has_set(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    monkeypatch.delenv("GRPC_FAIL_FAST", raising=False)
    monkeypatch.setenv("GRPC_VERBOSITY", "")
    tensorflow_import.set_defaults()
    found = {name: os.environ[name] for name in tensorflow_import.TENSORFLOW_DEFAULTS}
    assert found == {"TF_CPP_MIN_LOG_LEVEL": "0", "GRPC_FAIL_FAST": "use_caller", "GRPC_VERBOSITY": ""}


# Writes to standard error in all the ways there are.
WRITE = """
import os, subprocess, sys
from tf2dist.runtime import tensorflow_import
def write():
    print("python", file=sys.stderr)
    os.write(2, b"descriptor\\n")
    subprocess.run(["sh", "-c", "echo child >&2"], check=True)
    sys.stderr.write("unfinished ")
"""


def test_what_comes_is_dropped_when_all_is_well():
    code = """
print("before", file=sys.stderr)
with tensorflow_import.held_back_stderr():
    write()
    print("out")
print("after", file=sys.stderr)
"""
    assert python(WRITE + code) == (0, "out\n", "before\nafter\n")


@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt", "SystemExit"])
def test_what_comes_is_shown_when_something_fails(error):
    code = f"""
try:
    with tensorflow_import.held_back_stderr():
        write()
        raise {error}
except {error}:
    print("after", file=sys.stderr)
"""
    assert python(WRITE + code) == (0, "", "python\ndescriptor\nchild\nunfinished after\n")


def test_one_inside_of_another():
    code = """
try:
    with tensorflow_import.held_back_stderr():
        with tensorflow_import.held_back_stderr():
            write()
        os.write(2, b"outer\\n")
        raise ValueError
except ValueError:
    print("after", file=sys.stderr)
"""
    assert python(WRITE + code) == (0, "", "outer\nafter\n")


def test_what_the_library_logs_is_shown_at_once():
    """A lost peer ends the process at once, wherever it is: nobody would show the reason later."""
    code = """
import logging
from tf2dist.runtime import logging_setup
logging_setup.log_to_stderr()
with tensorflow_import.held_back_stderr():
    write()
    logging.getLogger("tf2dist").error("worker 1 is lost")
    with tensorflow_import.held_back_stderr():
        logging.getLogger("tf2dist").error("worker 2 is lost")
        os._exit(1)
"""
    assert python(WRITE + code) == (1, "", "worker 1 is lost\nworker 2 is lost\n")


def test_a_crash_shows_where_the_program_was():
    """As TensorFlow's on a CPU that is too old for it."""
    code = """
def mine():
    os.abort()
with tensorflow_import.held_back_stderr():
    pass
with tensorflow_import.held_back_stderr():
    mine()
"""
    status, out, err = python(WRITE + code)
    assert (status, out) == (-signal.SIGABRT, "")
    assert err.startswith("Fatal Python error: Aborted\n")
    assert "in mine\n" in err


@pytest.mark.parametrize("before", [False, True])
def test_a_programs_own_faulthandler_is_left_as_it_is(before):
    code = f"""
import faulthandler
faulthandler.enable() if {before} else faulthandler.disable()
with tensorflow_import.held_back_stderr():
    print(faulthandler.is_enabled())
print(faulthandler.is_enabled())
"""
    assert python(WRITE + code) == (0, f"True\n{before}\n", "")


def test_nothing_is_held_back_from_a_user_who_asks_for_all():
    code = """
with tensorflow_import.held_back_stderr():
    os.write(2, b"why\\n")
    os.abort()
"""
    status, out, err = python(WRITE + code, env={"TF_CPP_MIN_LOG_LEVEL": "0"})
    assert (status, out, err) == (-signal.SIGABRT, "", "why\n")


def test_no_descriptor_is_left_open():
    before = os.listdir("/proc/self/fd")
    for error in (None, ValueError):
        try:
            with tensorflow_import.held_back_stderr():
                if error:
                    raise error
        except ValueError:
            pass
    assert os.listdir("/proc/self/fd") == before


def test_a_process_without_standard_error():
    code = """
import os, sys
os.close(2)
sys.stderr = None
from tf2dist.runtime import tensorflow_import
with tensorflow_import.held_back_stderr():
    print("done")
"""
    assert python(code) == (0, "done\n", "")


@pytest.mark.slow
def test_tensorflow_is_imported_without_a_sound():
    code = """
import os
from tf2dist.runtime import tensorflow_import
tf = tensorflow_import.import_tensorflow()
assert tensorflow_import.import_tensorflow() is tf
print(tf.__name__, os.environ["TF_CPP_MIN_LOG_LEVEL"])
"""
    assert python(code) == (0, "tensorflow 3\n", "")


def test_why_the_import_fails_is_shown(tmp_path):
    (tmp_path / "keras.py").write_text("")
    (tmp_path / "tensorflow.py").write_text("import os\nos.write(2, b'no such CPU\\n')\nraise ImportError('too old')")
    code = "from tf2dist.runtime import tensorflow_import\ntensorflow_import.import_tensorflow()"
    status, out, err = python(code, env={"PYTHONPATH": str(tmp_path)})
    assert (status, out) == (1, "")
    assert err.startswith("no such CPU\nTraceback")
    assert err.endswith("ImportError: too old\n")
