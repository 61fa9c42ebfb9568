"""A file for what each process of a job prints."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launch import UsageError


class Logs:
    """Files `worker-0.log` and the like in a directory, new ones; a process that is started again goes on in its own.

    Raises:
      UsageError: they cannot be written.
    """

    def __init__(self, directory: str, names: Sequence[str]):
        self._fds = []
        try:
            os.makedirs(directory, exist_ok=True)
            for name in names:
                path = os.path.join(directory, file_of(name))
                self._fds.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666))
        except OSError as error:
            self.close()
            why = (error.strerror or str(error)).lower()
            raise UsageError(f"--logs={directory} cannot be written: {why}; name a writable directory") from None
        self.problem = ""  # why what was printed last could not be kept

    def add(self, key: int, data: bytes) -> None:
        """Appends what the process printed, as it is. A full disk costs the log, not the job."""
        while data and not self.problem:
            try:
                data = data[os.write(self._fds[key], data) :]
            except OSError as error:
                self.problem = (error.strerror or str(error)).lower()

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []


def file_of(name: str) -> str:
    """The file of a process, as "worker-0.log" for worker 0."""
    return f"{name.replace(' ', '-')}.log"
