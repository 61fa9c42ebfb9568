"""TCP connections of this process that others have opened in it, TensorFlow's among them."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Generator

# gRPC's servers give up a connection when what they have sent is not acknowledged for so long: 20 s, unless they are
# told otherwise, and TensorFlow has no option for it (https://github.com/grpc/proposal/blob/master/A18-tcp-user-timeout.md).
# Then the other side, which learns of it when the network is back, has a server that it takes for dead.
_GRPC_USER_TIMEOUT = 20_000  # milliseconds
_TCP_RTO_MAX_MS = 44  # include/uapi/linux/tcp.h, since Linux 6.15; Python has no name for it
_LONGEST_PAUSE = 5_000  # milliseconds
_ANY_STREAM = socket.SOCK_STREAM | socket.SOCK_NONBLOCK


def own_tcp_sockets() -> Generator[socket.socket]:
    """Yields a copy of every TCP socket that this process has open, which is closed when the next one is asked for.

    They are its owners': nothing may be sent, received, or set in which these would notice a change.

    Raises:
      OSError: no file descriptor is left to look at the others with.
    """
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # no socket, or closed meanwhile
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                # Where the type says that it does not block Python leaves this as it is, which a copy shares.
                with socket.socket(type=_ANY_STREAM, fileno=os.dup(fd)) as found:
                    kind = found.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
                    if found.family in (socket.AF_INET, socket.AF_INET6) and kind == socket.SOCK_STREAM:
                        yield found


def keep_through_cuts(connection: socket.socket, seconds: float) -> None:
    """Keeps a TCP connection through which nothing comes for so long; it tries again every few seconds.

    Without the latter, which older systems do not have, the pauses between two tries double, so that a network may be
    back for as long as it was cut before anything comes through it.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_PAUSE)


def outlive_cut_networks(seconds: float) -> None:
    """Has gRPC's servers in this process keep a connection for so long when nothing comes through it.

    To be called every few seconds: it acts on the connections that there are, and on those only that have gRPC's own
    limit. See TCP_USER_TIMEOUT in tcp(7).
    """
    level, name = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
    with contextlib.suppress(OSError):  # no file descriptor is left
        for found in own_tcp_sockets():
            with contextlib.suppress(OSError):  # another protocol of streams
                if found.getsockopt(level, name) == _GRPC_USER_TIMEOUT:
                    keep_through_cuts(found, seconds)
