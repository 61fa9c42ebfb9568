"""Connections that others have opened in this process: which are found, and how long they are kept."""

import contextlib
import os
import socket

import pytest

from tests.parity.processes import alone
from tf2dist.system.tcp_sockets import keep_through_cuts, outlive_cut_networks, own_tcp_sockets

DEADLINE = 30.0


def limit(end):
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@pytest.fixture
def connection():
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = stack.enter_context(socket.create_connection(server.getsockname()))
        yield near, stack.enter_context(server.accept()[0])


def test_which_sockets_are_found(connection):
    """Those of TCP alone, and no descriptor is left."""
    with socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        before = len(os.listdir("/proc/self/fd"))
        names = [found.getsockname() for found in own_tcp_sockets()]
        assert len(os.listdir("/proc/self/fd")) == before
    assert {end.getsockname() for end in connection} <= set(names)
    assert all(isinstance(name, tuple) for name in names)


def test_whose_limit_is_changed(connection):
    """That of gRPC's servers; what others have chosen stays."""
    near, far = connection
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 7_000)
    outlive_cut_networks(120.0)
    assert (limit(near), limit(far)) == (120_000, 7_000)


def test_how_long_a_connection_pauses(connection):
    """Until it tries again."""
    near, far = connection
    keep_through_cuts(near, 90.0)
    assert limit(near) == 90_000
    try:
        usual = far.getsockopt(socket.IPPROTO_TCP, 44)
    except OSError:
        return  # an older Linux, in which pauses have no such limit
    assert near.getsockopt(socket.IPPROTO_TCP, 44) == 5_000 < usual


def test_how_others_use_their_sockets_stays(connection):
    """Also where new ones get a limit of their own, which a copy would share."""
    socket.setdefaulttimeout(30.0)
    try:
        outlive_cut_networks(120.0)
    finally:
        socket.setdefaulttimeout(None)
    assert all(os.get_blocking(end.fileno()) for end in connection)


def test_a_process_without_descriptors_is_none_the_worse(monkeypatch):
    def none_left(path):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "listdir", none_left)
    outlive_cut_networks(120.0)


def limits_of_grpc():
    """Those of a server's connections, before and after they are changed."""
    import tensorflow as tf

    server = tf.distribute.Server.create_local_server()
    address = server.target.partition("//")[2]
    port = int(address.rpartition(":")[2])

    def of_server():
        return {limit(s) for s in own_tcp_sockets() if s.getsockname()[1] == port and connected(s)}

    def connected(end):
        with contextlib.suppress(OSError):
            return bool(end.getpeername())
        return False

    with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session:
        # The first connection is to the server itself, in this process.
        assert session.run(tf.constant(3)) == 3
        with socket.create_connection(("localhost", port), timeout=DEADLINE) as client:
            client.settimeout(DEADLINE)
            assert client.recv(9)  # its settings: it has accepted the connection
            before = of_server()
            outlive_cut_networks(120.0)
            return before, of_server()


def test_servers_of_grpc_have_the_limit_that_is_changed():
    """A guard: if it fails gRPC has another limit, or TensorFlow sets one, and `outlive_cut_networks` does nothing.

    In a process of its own: a heartbeat of this one would change it, too.
    """
    assert alone(limits_of_grpc) == ({20_000}, {120_000})
