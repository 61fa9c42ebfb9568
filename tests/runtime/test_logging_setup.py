"""Where the library's log is shown."""

import logging
import subprocess
import sys

import pytest

from tf2dist.runtime import logging_setup

LOG = "logging.getLogger('tf2dist').warning('tf2dist: worker 1 is back')"
PLAIN = "tf2dist: worker 1 is back\n"
ROOT = "logging.warning('root')"
ROOT_SHOWN = "WARNING:root:root\n"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (LOG, PLAIN),  # Python's default
        (f"setup.log_to_stderr(); {LOG}", PLAIN),
        (f"setup.log_to_stderr(); setup.log_to_stderr(); {ROOT}; {LOG}", ROOT_SHOWN + PLAIN),
        (f"setup.log_to_stderr_by_default(); {ROOT}; {LOG}", ROOT_SHOWN + PLAIN),
        (f"logging.basicConfig(format='log|%(message)s'); setup.log_to_stderr_by_default(); {LOG}", f"log|{PLAIN}"),
        (f"logging.root.addHandler(logging.NullHandler()); setup.log_to_stderr_by_default(); {LOG}", ""),
        (f"setup.log_to_stderr(); sys.stderr = None; {LOG}", ""),
    ],
)  # fmt: skip
def test_what_is_shown(code, shown):
    command = [sys.executable, "-c", f"import logging, sys\nfrom tf2dist.runtime import logging_setup as setup\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", shown)


def test_the_library_sets_up_no_logging_when_it_is_imported():
    code = (
        "import logging, tf2dist.runtime.session\n"
        "print(logging.root.handlers, logging.getLogger('tf2dist').handlers, logging.getLogger('tensorflow').level)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[] [] 0\n"


@pytest.mark.parametrize(("level", "expected"), [(None, logging.CRITICAL), ("3", logging.CRITICAL), ("0", 0)])
def test_tensorflows_log_is_quiet_unless_the_user_wants_it(monkeypatch, level, expected):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    if level:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    log = logging.getLogger("tensorflow")
    monkeypatch.setattr(log, "level", 0)
    logging_setup.quiet_tensorflow()
    assert log.level == expected
