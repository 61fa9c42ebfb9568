"""`--logs`: a file for what each process of a job prints."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tf2dist.errors import UsageError


class LogFiles:
    """New files in a directory, as `worker-0.log`; a process that is started again appends to its own.

    Args:
      directory: is made if it is not there.
      names: of processes whose files are made now; those of others are made when they print something.

    Raises:
      UsageError: they cannot be written.
    """

    def __init__(self, directory: str, names: Sequence[str]) -> None:
        self._directory = directory
        self._fds: dict[str, int] = {}
        try:
            os.makedirs(directory, exist_ok=True)
            for name in names:
                self._open(name)
        except OSError as error:
            self.close()
            why = (error.strerror or str(error)).lower()
            raise UsageError(f"--logs={directory} cannot be written: {why}; name a writable directory") from None
        self.problem = ""  # the error that ended the writing, a full disk say; empty while all is well

    def _open(self, name: str) -> None:
        path = os.path.join(self._directory, log_file_name(name))
        self._fds[name] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def add(self, name: str, data: bytes) -> None:
        """Appends what the process with this name has printed. A full disk ends the log, not the job."""
        while data and not self.problem:
            try:
                if name not in self._fds:
                    self._open(name)
                data = data[os.write(self._fds[name], data) :]
            except OSError as error:
                self.problem = (error.strerror or str(error)).lower()

    def close(self) -> None:
        """Closes the files."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}


def log_file_name(name: str) -> str:
    """The name of a process's file, as "worker-0.log" for "worker 0"."""
    return f"{name.replace(' ', '-')}.log"
