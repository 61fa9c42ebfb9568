"""A leader that begins with some of its workers."""

import socket

import pytest

from tests.cluster.test_rendezvous import (
    DEADLINE,
    PS,
    SETTINGS,
    WORKER0,
    WORKER1,
    ByHand,
    Stranger,
    agreed,
    cluster,
    follow,
    silent,
)
from tests.threads import background, stays
from tf2dist.cluster import rendezvous
from tf2dist.cluster.reachability import answering
from tf2dist.cluster.rendezvous import RendezvousError, wait_for_leader, wait_for_some
from tf2dist.cluster.spec import Cluster

__all__ = ["cluster", "silent"]  # fixtures
pytestmark = pytest.mark.timeout(90)
OTHERS = [PS, WORKER0, WORKER1]


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(rendezvous, "_LAST_CALL", 0.5)


def test_all_are_there(cluster, monkeypatch):
    monkeypatch.setattr(rendezvous, "_LAST_CALL", 10 * DEADLINE)  # nobody is waited for
    following = {task: follow(cluster, task) for task in OTHERS}
    found, missing = wait_for_some(cluster, OTHERS, 1, DEADLINE)
    assert missing == []
    agreed(cluster, found, following)


def test_one_is_missing(cluster):
    following = {task: follow(cluster, task) for task in (PS, WORKER1)}
    found, missing = wait_for_some(cluster, OTHERS, 1, DEADLINE)
    assert missing == [WORKER0]
    agreed(cluster, found, following)


def test_one_that_comes_at_the_last_call_is_not_missing(cluster, monkeypatch):
    monkeypatch.setattr(rendezvous, "_LAST_CALL", DEADLINE)
    following = {task: follow(cluster, task) for task in (PS, WORKER1)}
    waiting = background(wait_for_some, cluster, OTHERS, 1, DEADLINE)
    assert stays(waiting)
    following = {PS: following[PS], WORKER0: follow(cluster, WORKER0), WORKER1: following[WORKER1]}
    found, missing = waiting.result(DEADLINE)
    assert missing == []
    agreed(cluster, found, following)


def test_too_few_are_there(cluster):
    follow(cluster, PS), follow(cluster, WORKER1)
    with pytest.raises(RendezvousError) as caught:
        wait_for_some(cluster, OTHERS, 2, 2.0)
    address = cluster.address(WORKER0)
    assert str(caught.value) == f"1 of at least 2 workers are there after 2 s, without worker 0 at {address}"


def test_of_a_job_that_worker_0_leads_its_own_server_is_not_missing(cluster, monkeypatch):
    """It is a process that the leader has started, which listens at the leader's address."""
    led = Cluster({"worker": cluster.jobs["worker"], "ps": cluster.jobs["ps"]}, WORKER0)
    following = {PS: background(wait_for_leader, led.at(PS), WORKER0, DEADLINE)}
    waiting = background(wait_for_some, led, OTHERS, 1, DEADLINE)
    assert stays(waiting)
    following[WORKER0] = background(wait_for_leader, led, WORKER0, DEADLINE)
    found, missing = waiting.result(DEADLINE)
    assert missing == [WORKER1]
    assert [connection.task for connection in found] == [PS, WORKER0]
    for connection in [*found, *(follower.result(DEADLINE) for follower in following.values())]:
        connection.close()


def test_a_server_is_missing(cluster):
    follow(cluster, WORKER0)
    with pytest.raises(RendezvousError, match=r"^ps 0 at .* is missing after 1 s"):
        wait_for_some(cluster, OTHERS, 1, 1.0)


def test_a_worker_of_another_cluster_is_missing_and_named_once(cluster, capfd):
    following = {task: follow(cluster, task) for task in (PS, WORKER1)}
    other = Cluster({**cluster.jobs, "ps": (*cluster.jobs["ps"], "127.0.0.1:1")}, PS)
    follow(other, WORKER0)
    found, missing = wait_for_some(cluster, OTHERS, 1, DEADLINE)
    assert missing == [WORKER0]
    agreed(cluster, found, following)
    said = [line for line in capfd.readouterr().err.splitlines() if "worker 0 at" in line]
    assert len(said) == 1
    assert "was started with another cluster" in said[0]


def test_one_that_ends_before_the_others_go_may_come_again(cluster, monkeypatch):
    monkeypatch.setattr(rendezvous, "_LAST_CALL", DEADLINE)
    following = {PS: follow(cluster, PS)}
    waiting = background(wait_for_some, cluster, OTHERS, 1, DEADLINE)
    ByHand(cluster, WORKER0).end()
    following |= {task: follow(cluster, task) for task in (WORKER0, WORKER1)}
    found, missing = waiting.result(DEADLINE)
    assert missing == []
    agreed(cluster, found, following)


def test_which_servers_answer(cluster):
    """One accepts connections, as the kernel does for a stopped process, and one has ended."""
    stopped = socket.create_server(("127.0.0.1", cluster.port(WORKER0)))
    with Stranger(cluster.port(PS), SETTINGS), stopped:
        tasks = (PS, WORKER0, WORKER1)
        assert answering([cluster.address(task) for task in tasks], 0.5) == {cluster.address(PS)}
    assert answering([]) == set()


def test_enough_is_what_is_there_at_the_end(cluster, monkeypatch):
    """One that was there and has ended does not count."""
    follow(cluster, PS)
    waiting = background(wait_for_some, cluster, OTHERS, 1, 3.0)
    ByHand(cluster, WORKER0).end()
    with pytest.raises(RendezvousError, match=r"^0 of at least 1 workers are there after 3 s"):
        waiting.result(DEADLINE)
