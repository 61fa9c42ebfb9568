"""Connections to addresses of a cluster, and whether a server answers there. Imports no TensorFlow."""

from __future__ import annotations

import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

_HTTP2_BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # of a client (RFC 9113, 3.4): no settings


def connect(address: str, limit: float) -> socket.socket:
    """Connects to "host:port" within `limit` seconds for each address of the host; raises an OSError."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=limit)


def answering(addresses: Collection[str], limit: float = 2.0) -> set[str]:
    """Returns those of these addresses at which a gRPC server, as TensorFlow's, answers within `limit` seconds.

    Of a process that is stopped, or about to end, the kernel still accepts connections.
    """

    def answers(address: str) -> bool:
        try:
            with connect(address, limit) as connection:
                connection.settimeout(limit)
                connection.sendall(_HTTP2_BEGIN)
                return bool(connection.recv(1))
        except OSError:
            return False

    with ThreadPoolExecutor(max(1, min(64, len(addresses)))) as threads:
        return {address for address, answer in zip(addresses, threads.map(answers, addresses), strict=True) if answer}
