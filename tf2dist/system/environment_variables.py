"""Environment variables that this project reads or sets; docs/environment.md has the table."""

from collections.abc import Mapping

from tf2dist.system.whole_numbers import whole_number

START_TIMEOUT = "TF2DIST_START_TIMEOUT"  # seconds that a task waits for the others
LAUNCHED_AT = "TF2DIST_LAUNCHED_AT"  # Unix time at which the user's command began
JOB_ID = "TF2DIST_JOB_ID"  # tasks that have different ones are of different jobs, and do not start together
PREPARED = "TF2DIST_PREPARED"  # what a launching trainer has found out for all its processes, as JSON
WORKERS_GRACE = "TF2DIST_WORKERS_GRACE"  # seconds that a ps job without workers waits for them
MIN_WORKERS = "TF2DIST_MIN_WORKERS"  # with how many workers a ps job begins; others join it when they come
STALL_TIMEOUT = "TF2DIST_STALL_TIMEOUT"  # seconds without a step after which a job fails; 0 for never
BATCH_TIMEOUT = "TF2DIST_BATCH_TIMEOUT"  # seconds that a batch may take where this process reads them
FILES_TIMEOUT = "TF2DIST_FILES_TIMEOUT"  # seconds that an object store may take to answer, or to come on
ONE_SERVER_BYTES = "TF2DIST_ONE_SERVER_BYTES"  # up to which variables are all on the first parameter server
DISPATCHER_PORT = "TF2DIST_DISPATCHER_PORT"  # of a job's data service; a free one if not set
SLURM_TASKS = "TF2DIST_TASKS"  # which tasks a Slurm job has, in the order of their numbers: "chief:1,worker:2,ps:1"
SLURM_PORT = "TF2DIST_PORT"  # the port of task 0 of a Slurm job; task n has this plus n
GPU_MEMORY = "TF2DIST_GPU_MEMORY"  # MiB that a process may take of each GPU that it sees
GPUS_SHARED_BY = "TF2DIST_GPUS_SHARED_BY"  # how many processes of the job use one GPU; 1 if not set
GPUS_GIVEN = "TF2DIST_GPUS_GIVEN"  # how many GPUs a process was promised; it ends where TensorFlow uses fewer
PREEMPTIBLE = "TF2DIST_PREEMPTIBLE"  # 1: SIGTERM has the job save and end with status 75, where it can; 0: it does not
STEP_FILE = "TF2DIST_STEP_FILE"  # where the task that leads writes how many steps it has made, for its launcher
LOSS_STATUS = "TF2DIST_LOSS_STATUS"  # with which a task ends that has lost another one; 1 if not set
PREEMPTED_FILE = "TF2DIST_PREEMPTED_FILE"  # is made by the task that leads when its job ends to be started again

# Set before TensorFlow is imported, unless the user has set them.
TENSORFLOW_DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # C++ errors reach Python as exceptions that say more
    "GRPC_VERBOSITY": "ERROR",
    # A call to a server that is not there (yet) waits or fails as the caller asked, not at once: without it a
    # coordinator gives up on a worker that restarts (documentation of ParameterServerStrategy).
    "GRPC_FAIL_FAST": "use_caller",
}


def seconds(name: str, environ: Mapping[str, str], default: float) -> float:
    """Returns the seconds that a variable holds, or `default` if it is not set.

    Raises:
      ValueError: it holds something else than a number above 0; in one line.
    """
    text = environ.get(name, "")
    try:
        found = float(text) if text else default
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ValueError(f"{name} is {text!r}; it must be a number of seconds above 0")
    return found


def seconds_or_never(name: str, environ: Mapping[str, str]) -> float | None:
    """Returns the seconds that a variable holds; None if it is 0 or not set.

    Raises:
      ValueError: it holds something else; in one line.
    """
    text = environ.get(name, "")
    try:
        found = float(text or 0)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise ValueError(f"{name} is {text!r}; it must be a number of seconds, or 0 for never")
    return found or None


def count(name: str, environ: Mapping[str, str]) -> int | None:
    """Returns the whole number above 0 that a variable holds; None if it is not set.

    Raises:
      ValueError: it holds something else; in one line.
    """
    text = environ.get(name, "")
    found = whole_number(text)
    if text and not found:
        raise ValueError(f"{name} is {text!r}; it must be a whole number above 0")
    return found


def nbytes(name: str, environ: Mapping[str, str], default: int) -> int:
    """Returns the bytes that a variable holds, from 0 on, or `default` if it is not set.

    Raises:
      ValueError: it holds something else; in one line.
    """
    text = environ.get(name, "")
    found = whole_number(text) if text else default
    if found is None:
        raise ValueError(f"{name} is {text!r}; it must be a number of bytes, 0 or more")
    return found


def switch(name: str, environ: Mapping[str, str]) -> bool:
    """Returns whether a variable is 1; it is not if it is 0, empty or not set.

    Raises:
      ValueError: it holds something else; in one line.
    """
    text = environ.get(name, "")
    if text not in ("", "0", "1"):
        raise ValueError(f"{name} is {text!r}; it must be 1 or 0")
    return text == "1"
