"""The import of TensorFlow without its start-up messages."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import sys
from collections.abc import Generator

from tf2dist.runtime import logging_setup
from tf2dist.system import garbage_collector
from tf2dist.system.environment_variables import TENSORFLOW_DEFAULTS


def set_defaults() -> None:
    """Sets the environment variables that TensorFlow reads at its import; what the user has set stays."""
    for name, value in TENSORFLOW_DEFAULTS.items():
        os.environ.setdefault(name, value)


def import_tensorflow():
    """Imports and returns TensorFlow; what it prints at its import is shown only when that fails.

    `TF_CPP_MIN_LOG_LEVEL` has no effect on what TensorFlow logs before its logging is initialized, so standard error
    is held back during the import.
    """
    set_defaults()
    if "tensorflow" not in sys.modules:
        with held_back_stderr(), garbage_collector.paused():
            importlib.import_module("keras")
            import tensorflow as tf
    import tensorflow as tf

    return tf


@contextlib.contextmanager
def held_back_stderr() -> Generator[None]:
    """Captures what is written to file descriptor 2, and shows it only when the block raises; our log is shown.

    What was captured is lost when TensorFlow ends the process by a signal (SIGABRT at a failed check, SIGILL on an old
    CPU). So Python shows its own stack then, and nothing is captured where the user asks for all that TensorFlow says.
    """
    if sys.stderr is None or os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":  # None: the process was started without one
        yield
        return
    sys.stderr.flush()
    with (
        open(os.dup(2), "wb", buffering=0) as kept,
        open(os.memfd_create("stderr"), "rb") as caught,  # it needs no directory
        logging_setup.shown_on(kept.fileno()),
        _stack_at_a_crash(kept.fileno()),
    ):
        os.dup2(caught.fileno(), 2)
        try:
            try:
                yield
            finally:
                sys.stderr.flush()
        except BaseException:
            os.dup2(kept.fileno(), 2)
            caught.seek(0)
            os.write(2, caught.read())
            raise
        finally:
            os.dup2(kept.fileno(), 2)


@contextlib.contextmanager
def _stack_at_a_crash(descriptor: int) -> Generator[None]:
    """Inside, a signal that ends the process has Python's stack written there; a program's own faulthandler stays."""
    if faulthandler.is_enabled():
        yield
        return
    faulthandler.enable(descriptor)
    try:
        yield
    finally:
        faulthandler.disable()
