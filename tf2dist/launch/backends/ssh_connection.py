"""The near end of `launch ssh`, one process a task: runs ssh, and sends the far end (`ssh_remote_agent`) heartbeats."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tf2dist.launch.backends import ssh_remote_agent

LOST = 255  # what ssh ends with when it cannot connect, or has lost the connection
ORDER = "TF2DIST_REMOTE"  # the environment variable that holds what to do, for this process only
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
# A clone that is at the same path on every host (NFS) need not be installed there: its path is searched last.
# The directory of the login is not searched: what lies there may be named as a module of Python.
_BOOT = (
    "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv[1]]; "
    "from tf2dist.launch.backends.ssh_remote_agent import main; main()"
)


def command(ssh: Sequence[str], host: str, python: str, limit: float) -> list[str]:
    """Returns the ssh command that starts a remote agent on the host.

    It never prompts: nobody would answer a question for a password, or whether to trust a new host. ssh gives up on a
    host that does not answer after `limit` seconds, and on one that falls silent after 30.
    """
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={max(1, round(limit))}",
        "ServerAliveInterval=10",
        "ServerAliveCountMax=3",
        "LogLevel=ERROR",
        "ControlMaster=no",  # a master ends with its last session: the end of its own task would not be seen
        "ClearAllForwardings=yes",  # several connections to a host cannot all listen at the port of one
    ]
    far = f"exec {shlex.join([python, '-c', _BOOT, _ROOT])}"
    return [*ssh, "-T", "-a", "-x", *(word for option in options for word in ("-o", option)), bare(host), far]


def bare(host: str) -> str:
    """Returns the host as ssh takes it: an IPv6 address without brackets."""
    return host.replace("[", "").replace("]", "")


def main() -> None:
    """Runs ssh for the task in the environment variable `ORDER`; exits with the task's status."""
    order = json.loads(os.environ.pop(ORDER))
    time.sleep(order["delay"])
    # A session of its own: a signal to the launcher's processes must not cut the connection before `end` was sent.
    ssh = subprocess.Popen(order["command"], stdin=subprocess.PIPE, start_new_session=True)
    assert ssh.stdin is not None
    os.set_blocking(ssh.stdin.fileno(), True)
    ended: list[bool] = []
    told: list[bool] = []

    def end(*_: object) -> None:
        ended.append(True)
        if told:  # not in the middle of the first line, which waits for as long as ssh connects
            _send(ssh, b"end\n")

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, end)
    _send(ssh, json.dumps(order["agent"]).encode() + b"\n")
    told.append(True)
    if ended:
        _send(ssh, b"end\n")
    while True:
        try:
            status = ssh.wait(ssh_remote_agent.HEARTBEAT_INTERVAL)
            break
        except subprocess.TimeoutExpired:
            os.set_blocking(ssh.stdin.fileno(), False)  # the first line may be long; these are short
            _send(ssh, b"\n")
    if status == LOST:
        print(f"the connection to {order['host']} failed or was lost", file=sys.stderr)
    sys.exit(status if status >= 0 else 128 - status)


def _send(ssh: subprocess.Popen[bytes], words: bytes) -> None:
    with contextlib.suppress(OSError):  # it is gone, or the network is full: the silence says enough
        while words:
            words = words[os.write(ssh.stdin.fileno(), words) :]  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
