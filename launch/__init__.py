"""Starts the processes of a job: python -m launch NAME [options] -- MODULE_OR_SCRIPT [args]. Imports no TensorFlow.

- `process.supervise` runs a group of processes that lives and dies together.
- `forkserver` and `zygote` are the two ends of the helper that forks them after it has imported TensorFlow once.
- `program` is what a forked child does to become the user's program.
- `local` and the modules named in `__main__` are the launchers.

It needs Linux 5.3 or newer (pidfd, epoll, prctl).
"""


class UsageError(ValueError):
    """A job that cannot be started as asked; in one line: what, what was found, what would do."""
