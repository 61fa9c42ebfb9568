import socket

import pytest

from tf2dist.launch import free_ports


def listen(family, host, port):
    """Listens the way gRPC's server does."""
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.bind((host, port))
    server.listen()
    return server


@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1")],
)
def test_a_server_listens_on_a_held_port_and_is_reached(family, host):
    with free_ports.hold(2) as (port, _):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        with listen(family, host, port) as server, socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(b"hello")
            connection, _ = server.accept()
            with connection:
                assert connection.recv(5) == b"hello"


def test_held_ports_are_never_given_to_anybody_else():
    with free_ports.hold(32) as held:
        assert len(set(held)) == 32
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "::")):
            for reuse in (0, 1):
                for _ in range(5000):
                    with socket.socket(family, socket.SOCK_STREAM) as other:
                        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                        other.bind((host, 0))
                        assert other.getsockname()[1] not in held


def test_outgoing_connections_do_not_take_held_ports():
    with free_ports.hold(32) as held, listen(socket.AF_INET, "127.0.0.1", 0) as server:
        for _ in range(500):
            with socket.create_connection(server.getsockname(), timeout=5) as client:
                assert client.getsockname()[1] not in held
            server.accept()[0].close()


def test_ports_are_free_afterwards():
    with free_ports.hold(1) as [port]:
        pass
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
