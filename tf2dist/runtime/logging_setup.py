"""How programs show what the library logs: trainers, servers, and members of a cluster that set up no logging."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Generator

from tf2dist.system import environment_variables

_shown_on: list[int] = []  # what standard error is, while something else is in its place
_writes = threading.Lock()  # held while a record is written, so that nobody replaces standard error meanwhile


@contextlib.contextmanager
def shown_on(descriptor: int) -> Generator[None]:
    """Inside, what the library logs to standard error goes to this descriptor."""
    with _writes:
        _shown_on.append(descriptor)
    try:
        yield
    finally:
        with _writes:
            _shown_on.remove(descriptor)


class _StderrHandler(logging.Handler):
    """Writes each record as its bare message to what is standard error at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with _writes:
                if _shown_on:  # the first is the real one; the others are what it was replaced with
                    os.write(_shown_on[0], f"{self.format(record)}\n".encode(errors="replace"))
                elif sys.stderr is not None:
                    sys.stderr.write(f"{self.format(record)}\n")  # at once: other threads log too
                    sys.stderr.flush()
        except Exception:  # a pipe without a reader, say
            self.handleError(record)


def log_to_stderr() -> None:
    """Shows the library's log as plain lines on standard error; for trainers and server processes."""
    log = logging.getLogger("tf2dist")
    if not any(isinstance(handler, _StderrHandler) for handler in log.handlers):
        log.addHandler(_StderrHandler())
        log.setLevel(logging.INFO)
        log.propagate = False


def log_to_stderr_by_default() -> None:
    """As `log_to_stderr`, unless the program has set up logging; for user programs that join a cluster.

    Python's own default would show bare lines too, but a dependency of TensorFlow logs to the root logger, and that
    sets up another format for the whole process.
    """
    log = logging.getLogger("tf2dist")
    if not log.hasHandlers():
        log_to_stderr()
    elif log.level == logging.NOTSET:  # a root logger at WARNING, its default, would drop an evaluator's results
        log.setLevel(logging.INFO)


def quiet_tensorflow() -> None:
    """Turns the Python log of TensorFlow off, unless TF_CPP_MIN_LOG_LEVEL asks for more; for processes of a launcher.

    It reports every retry of a remote call as an error, over several lines. To be called before or after the import.
    """
    name = "TF_CPP_MIN_LOG_LEVEL"
    default = environment_variables.TENSORFLOW_DEFAULTS[name]
    if os.environ.get(name, default) == default:
        logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
