"""The near end of `launch ssh`: runs ssh for one task, and keeps telling the far end that the launcher lives."""

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

from launch import keeper

LOST = 255  # what ssh ends with when it cannot connect, or has lost the connection
ORDER = "TF2DIST_REMOTE"  # the environment variable that holds what to do, for this process only
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A root at the end of the path, and no `-m` or `-P`: where it starts may be another module named launch, and the
# program may be a module of the user's directory.
_BOOT = "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv[1]]; from launch.keeper import main; main()"


def command(ssh: Sequence[str], host: str, python: str, limit: float) -> list[str]:
    """The ssh command that starts a keeper on the host.

    It asks for nothing: a password, or whether to trust a new host, would be a question that nobody answers. A host
    that does not answer is given up after `limit` seconds, and one that fell silent after 30.
    """
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={max(1, round(limit))}",
        "ServerAliveInterval=10",
        "ServerAliveCountMax=3",
        "LogLevel=ERROR",
        "ClearAllForwardings=yes",  # several connections to a host cannot all listen at the port of one
    ]
    far = f"exec {shlex.join([python, '-c', _BOOT, _ROOT])}"
    return [*ssh, "-T", "-a", "-x", *(word for option in options for word in ("-o", option)), bare(host), far]


def bare(host: str) -> str:
    """The host as ssh takes it, which knows no brackets around an IPv6 address."""
    return host.replace("[", "").replace("]", "")


def main() -> None:
    """Run by the launcher's helper, one for each task; ends with the task's status."""
    order = json.loads(os.environ.pop(ORDER))
    time.sleep(order["delay"])
    # A session of its own: a signal to the launcher's processes must not cut the connection before `end` was said.
    ssh = subprocess.Popen(order["command"], stdin=subprocess.PIPE, start_new_session=True)
    assert ssh.stdin is not None
    os.set_blocking(ssh.stdin.fileno(), True)
    ended, told = [], []

    def end(*_):
        ended.append(True)
        if told:  # not in the middle of the first line, which waits for as long as ssh connects
            _say(ssh, b"end\n")

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, end)
    _say(ssh, json.dumps(order["keeper"]).encode() + b"\n")
    told.append(True)
    if ended:
        _say(ssh, b"end\n")
    while True:
        try:
            status = ssh.wait(keeper.SIGN)
            break
        except subprocess.TimeoutExpired:
            os.set_blocking(ssh.stdin.fileno(), False)  # the first line may be long; these are short
            _say(ssh, b"\n")
    if status == LOST:
        print(f"the connection to {order['host']} failed or was lost", file=sys.stderr)
    sys.exit(status if status >= 0 else 128 - status)


def _say(ssh: subprocess.Popen, words: bytes) -> None:
    with contextlib.suppress(OSError):  # it is gone, or the network is full: the silence says enough
        while words:
            words = words[os.write(ssh.stdin.fileno(), words) :]  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
