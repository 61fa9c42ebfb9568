"""TensorFlow without its start-up noise."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile

DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # C++ errors reach Python as exceptions that say more
    "GRPC_VERBOSITY": "ERROR",
    # A call to a server that is not there (yet) waits or fails as the caller asked, not at once: without it a
    # coordinator gives up on a worker that restarts (documentation of ParameterServerStrategy).
    "GRPC_FAIL_FAST": "use_caller",
}


def set_defaults() -> None:
    """Sets what must be in the environment before TensorFlow is imported; what the user has set stays."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def import_tensorflow():
    """Imports and returns TensorFlow; what it prints while loading is shown only when that fails.

    `TF_CPP_MIN_LOG_LEVEL` does not hold for what is logged before logging starts, so standard error is held back
    for as long as the import takes.
    """
    set_defaults()
    if "tensorflow" not in sys.modules:
        with held_back_stderr():
            import keras  # noqa: F401
            import tensorflow as tf
    import tensorflow as tf

    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == DEFAULTS["TF_CPP_MIN_LOG_LEVEL"]:
        # Its Python half reports every retry of a remote call as an error, over several lines.
        tf.get_logger().setLevel("CRITICAL")
    return tf


@contextlib.contextmanager
def held_back_stderr():
    """Holds file descriptor 2 back; prints what came when the block raises."""
    if sys.stderr is None:  # the process was started without one
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            try:
                yield
            finally:
                sys.stderr.flush()
        except BaseException:
            os.dup2(kept, 2)
            caught.seek(0)
            os.write(2, caught.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
