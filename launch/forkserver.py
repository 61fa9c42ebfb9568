"""The launcher's side of the forkserver: starts the helper, commands it, hears of its children."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tf2dist import quiet

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# `-c` and a root, not `-m`: the user's directory may hold another module named launch.
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from launch.zygote import main; main()"


class ForkServer:
    """A helper process that has imported `preload` and forks from there.

    It starts to import at once; `fork` may be called after the event {"ready": true}. Events are read from
    `control` with `event()`: {"started": key, "pid": N}, {"ended": key, "status": N} (negative for a signal), in the
    order in which they happened, and None when the helper is gone. The helper ends, with every descendant, when it
    is told to, when this object is closed, and when this process dies.

    Args:
      preload: modules to import.
      env: added to the environment.
      isolate: whether it, and all that it forks, has a network of its own.

    Raises:
      OSError: when it cannot be started.
    """

    def __init__(self, preload: Sequence[str], env: Mapping[str, str], *, isolate: bool = False):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ready = False
        # What imports print is of interest only when they fail.
        self._log = os.fdopen(os.memfd_create("helper.log"), "rb", buffering=0)
        with theirs:
            arguments = [_ROOT, str(os.getpid()), str(theirs.fileno()), ",".join(preload), "1" if isolate else ""]
            self.process = subprocess.Popen(
                [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", _BOOT, *arguments],
                env={**quiet.DEFAULTS, **os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the launcher, which decides what it means for the job
            )

    def fork(self, key: int, task: dict) -> tuple[int, int]:
        """Has the helper start a process; returns the ends of its stdout and stderr to read from, without blocking.

        Args:
          key: what its events will call it.
          task: `name`, `argv`, `env` and `command`, see `process.Process`.

        Raises:
          ConnectionError: when the helper is gone.
        """
        spec = os.memfd_create("task")  # a message has a largest size, and argv and env may be larger
        stdout, stdout_theirs = os.pipe()
        stderr, stderr_theirs = os.pipe()
        theirs = [spec, stdout_theirs, stderr_theirs]
        try:
            os.write(spec, json.dumps(task).encode())
            os.lseek(spec, 0, os.SEEK_SET)
            socket.send_fds(self.control, [json.dumps({"fork": key}).encode()], theirs)
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

    def end(self, grace: float) -> None:
        """Has the helper end everything: SIGTERM now (once), SIGKILL for what is left after `grace` seconds."""
        if not self.ready:
            self.process.terminate()  # it imports, has no children, and would only listen when it is done
            return
        with contextlib.suppress(ConnectionError):  # it is gone, and its children with it
            self.control.send(json.dumps({"end": grace}).encode())

    def event(self) -> dict | None:
        """The next thing that happened; None when the helper is gone."""
        try:
            message = self.control.recv(4096)
        except ConnectionError:
            message = b""
        event = json.loads(message) if message else None
        self.ready = self.ready or event == {"ready": True}
        return event

    def log(self) -> bytes:
        """What the helper has printed."""
        self._log.seek(0)
        return self._log.read()

    def close(self) -> int:
        """Ends everything that still runs; returns the helper's own exit status. May be called again."""
        self.control.close()
        self._log.close()
        return self.process.wait()
