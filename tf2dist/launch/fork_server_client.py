"""The launcher's side of the fork server: starts it, sends it commands, and reads its events."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tf2dist.system import environment_variables, linux

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_MARK = "TF2DIST_JOB"  # in the environment of everything that a fork server starts
# The fork server comes from the same installation or clone as this launcher, whatever the working directory holds.
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from tf2dist.launch.fork_server import main; main()"


class ForkServerClient:
    """Starts a fork server, a process that imports `preload` once and then forks every process of the job.

    The import begins at once; `fork` may be called after the event {"ready": true}. `event` reads the events from
    `control`: {"started": key, "pid": N}, {"ended": key, "status": N} (negative for a signal), in the order in which
    they happened; {"over": true} when all have ended after `end`, so that others may be forked; and None when the fork
    server is gone. It ends, with every descendant, when `close` is called, and when this process dies.

    Args:
      preload: modules to import.
      isolate: should it, and all that it forks, have a network of its own?
      link: is each process to be a host in that network? Then the queueing discipline of its link, see
        `emulated_network`; None if not.
      inherited: file descriptors that it, and all that it forks, has as well.

    Raises:
      OSError: the fork server cannot be started.
    """

    def __init__(
        self,
        preload: Sequence[str],
        *,
        isolate: bool = False,
        link: str | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ready, self.is_gone = False, False
        self._mark = uuid.uuid4().hex
        # What the imports print is shown only when they fail.
        self._log = os.fdopen(os.memfd_create("fork_server.log"), "rb", buffering=0)
        with theirs:
            files = str(linux.usual_files())
            arguments = [_ROOT, str(os.getpid()), str(theirs.fileno()), files, ",".join(preload), "1" * isolate]
            arguments += [] if link is None else [link]
            flags = cast("list[str]", subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]
            self.process = subprocess.Popen(
                [sys.executable, *flags, "-c", _BOOT, *arguments],
                env={**environment_variables.TENSORFLOW_DEFAULTS, **os.environ, _MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno(), *inherited],
                start_new_session=True,  # Ctrl-C goes to the launcher, which decides what it means for the job
            )

    def fork(
        self, key: int, task: Mapping[str, Any], *, replaceable: bool = False, address: str | None = None
    ) -> tuple[int, int]:
        """Starts a process; returns the read ends of its stdout and stderr, which do not block.

        Args:
          key: identifies the process in events.
          task: `name`, `argv`, `env` and `command`, see `process.Process`.
          replaceable: may another one take its place when it has failed? Then nothing is left of its process group
            by the time that its end is reported.
          address: of the host that it is to be, with the others of its process group.

        Raises:
          ConnectionError: the fork server is gone.
        """
        spec = os.memfd_create("task")  # a file, because argv and env may be larger than the largest message
        stdout, stdout_theirs = os.pipe()
        stderr, stderr_theirs = os.pipe()
        theirs = [spec, stdout_theirs, stderr_theirs]
        try:
            os.write(spec, json.dumps(task).encode())
            os.lseek(spec, 0, os.SEEK_SET)
            command = {"fork": key, "replaceable": replaceable, "address": address}
            socket.send_fds(self.control, [json.dumps(command).encode()], theirs)
        except OSError:
            os.close(stdout)
            os.close(stderr)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        os.set_blocking(stdout, False)
        os.set_blocking(stderr, False)
        return stdout, stderr

    def cut_off(self, address: str, *, cut: bool) -> None:
        """Cuts the link of the host with this address, or restores it."""
        with contextlib.suppress(ConnectionError):  # the fork server is gone, and the host with it
            self.control.send(json.dumps({"cut": cut, "address": address}).encode())

    def end(self, grace: float) -> None:
        """Ends every process: SIGTERM now (once), SIGKILL for what is left after `grace` seconds.

        The fork server ends, too, if it has not imported everything yet.
        """
        with contextlib.suppress(ConnectionError):  # it is gone, and its children with it
            self.control.send(json.dumps({"end": grace}).encode())
        if not self.ready:
            self.process.terminate()  # as long as it imports it has no children, and reads no command

    def event(self) -> dict[str, Any] | None:
        """Reads the next event; returns None when the fork server is gone."""
        try:
            message = self.control.recv(4096)
        except ConnectionError:
            message = b""
        event = json.loads(message) if message else None
        self.is_gone = event is None
        self.ready = self.ready or event == {"ready": True}
        return event

    def log(self) -> bytes:
        """Returns what the fork server itself has printed."""
        self._log.seek(0)
        return self._log.read()

    def close(self) -> int:
        """Ends everything that still runs; returns the fork server's own exit status. May be called again."""
        self.control.close()
        self._log.close()
        self.is_gone = True
        if status := self.process.wait():
            self._kill_marked()
        return status

    def _kill_marked(self) -> None:
        """Kills what the fork server could not: when it dies the kernel kills its children, but not theirs."""
        for _ in range(100):
            if not (left := linux.started_with(_MARK, self._mark)):
                break
            linux.kill(left, signal.SIGKILL)
            time.sleep(0.01)
