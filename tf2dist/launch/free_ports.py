"""Chooses loopback ports for a job on this machine, and keeps them free until its servers listen on them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator


@contextlib.contextmanager
def hold(count: int) -> Generator[list[int]]:
    """Holds `count` different free ports of 127.0.0.1 until the end of the block.

    Finding a free port and closing it before the server binds it is a race: another program can take it in between.
    Here nothing is closed. On Linux a port bound with SO_REUSEADDR by a socket that does not listen is passed over
    when the kernel chooses a port for bind(0) or connect(), whoever asks, yet another socket with SO_REUSEADDR may
    bind the same port and listen on it. gRPC's servers, and so `tf.distribute.Server`, set SO_REUSEADDR.

    Raises:
      OSError: no port is free.
    """
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for _ in range(count):
            holder = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            ports.append(holder.getsockname()[1])
        yield ports
