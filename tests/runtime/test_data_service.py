"""Where the dispatcher of a job's data workers listens, and what a data worker says that does not reach it."""

import socket
import threading

import pytest

from tf2dist.cluster import rendezvous
from tf2dist.cluster.heartbeat import TaskConnection
from tf2dist.cluster.spec import Cluster, Task
from tf2dist.errors import UsageError
from tf2dist.launch import free_ports
from tf2dist.runtime import data_service

pytestmark = pytest.mark.timeout(60)


def test_the_port_of_the_dispatcher(tf, monkeypatch):
    assert 0 < data_service.start_dispatcher(2).port < 65536
    with free_ports.hold(1) as (port,):
        pass
    monkeypatch.setenv("TF2DIST_DISPATCHER_PORT", str(port))
    service = data_service.start_dispatcher(2)
    assert (service.port, service.workers) == (port, 2)


def test_a_port_at_which_another_dispatcher_listens(tf, monkeypatch):
    """TensorFlow would listen there as well."""
    other = data_service.start_dispatcher(1)
    monkeypatch.setenv("TF2DIST_DISPATCHER_PORT", str(other.port))
    with pytest.raises(UsageError, match=f"cannot listen at port {other.port}: address already in use"):
        data_service.start_dispatcher(1)


@pytest.mark.parametrize(
    ("text", "said"), [("x", "must be a whole number"), ("0", "must be a whole number"), ("65536", "from 1 to 65535")]
)
def test_ports_that_are_none(tf, monkeypatch, text, said):
    monkeypatch.setenv("TF2DIST_DISPATCHER_PORT", text)
    with pytest.raises(UsageError, match=f"TF2DIST_DISPATCHER_PORT is .*{said}"):
        data_service.start_dispatcher(1)


@pytest.fixture
def data_worker():
    """The connection of a data worker to its leader, and the leader's end of it."""
    near, far = socket.socketpair()
    with near, far:
        yield TaskConnection(near, Task("worker", 0), "127.0.0.1:1"), far


def cluster():
    with free_ports.hold(2) as (first, second):
        jobs = {"worker": (f"127.0.0.1:{first}",), "data_worker": (f"127.0.0.1:{second}",)}
    return Cluster(jobs, Task("data_worker", 0))


def test_a_data_worker_makes_elements_for_its_leader(tf, data_worker):
    connection, leader = data_worker
    service = data_service.start_dispatcher(1)
    threading.Timer(0.2, leader.sendall, [f"dispatcher {service.port}\n".encode()]).start()
    server = data_service.start_worker(connection, cluster(), 20.0)
    distribute = tf.data.experimental.service.distribute
    read = tf.data.Dataset.range(5).apply(distribute("distributed_epoch", service.target))
    assert sorted(read.as_numpy_iterator()) == [0, 1, 2, 3, 4]
    del server


def test_a_leader_that_does_not_say_where_its_dispatcher_is(data_worker):
    connection, _ = data_worker
    with pytest.raises(rendezvous.RendezvousError, match=r"worker 0 at .* did not say dispatcher within 0.1 s"):
        data_service.start_worker(connection, cluster(), 0.1)


def test_a_dispatcher_that_is_not_there(tf, data_worker):
    connection, leader = data_worker
    leader.sendall(b"dispatcher 1\n")
    with pytest.raises(
        rendezvous.RendezvousError, match=r"data_worker 0 does not reach .* at 127.0.0.1:1: connection refused"
    ):
        data_service.start_worker(connection, cluster(), 2.0)
