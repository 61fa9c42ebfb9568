"""What a coordinator's monitor makes of the loss of a parameter server, and of its return."""

import dataclasses

import pytest

from tests.threads import DEADLINE, background, stays, wait_until
from tf2dist.cluster.loss_policy import LossPolicy
from tf2dist.cluster.spec import Cluster, Task
from tf2dist.runtime.monitored_servers import MonitoredServers

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("ended")]
PS = [Task("ps", 0), Task("ps", 1)]
CLUSTER = Cluster({"chief": ("c:1",), "ps": ("ps0:2222", "ps1:2222"), "worker": ("worker0:2222",)}, Task("chief", 0))
GONE = "ps 1 at ps1:2222 is gone: it ended before the job was done"


@pytest.fixture
def servers(lead, connect):
    """A coordinator's servers, of which ps 1 is lost by `end()`, and comes back, once, by `come_back()`."""
    lines, back = [connect("ps", 0), connect("ps", 1), connect("worker", 0)], connect("ps", 1)
    found = iter([back[0]])
    policy = LossPolicy(True, frozenset({Task("worker", 0)}), workers_grace=0.3)
    monitor = lead(*lines, policy=policy, find_replacement=lambda task, over: next(found, None))
    servers = MonitoredServers(monitor, CLUSTER)
    servers.monitor = monitor
    servers.others = [lines[0][1], lines[1][1]]
    servers.end, servers.end_worker = lines[1][1].end, lines[2][1].end
    servers.come_back = lambda: back[1].say("ready")
    return servers


def test_a_loss_ends_the_job_where_nobody_restores_what_is_lost(servers, ended):
    servers.end()
    assert ended.result(DEADLINE) == GONE


def test_a_loss_ends_the_job_before_there_is_a_checkpoint(servers, ended):
    with servers.restoring(lambda: False):
        servers.end()
        assert ended.result(DEADLINE) == GONE


def test_servers_are_told_what_they_hold(servers):
    servers.note_kept(2**63, 1)
    assert [other.next(besides=["go", "ping"]) for other in servers.others] == [f"keeps {2**63} 1"] * 2


def test_a_server_that_comes_back(servers, ended, capfd):
    known = servers.parameter_servers()
    assert known == dict.fromkeys(PS, 1)
    with servers.restoring(lambda: True):
        assert servers.lost_since(known, 0.0) == []
        servers.end()
        assert servers.lost_since(known, DEADLINE) == [PS[1]]
        assert servers.parameter_servers() == {PS[0]: 1}
        assert servers.all_parameter_servers(0.01) is None
        waiting = background(servers.all_parameter_servers, DEADLINE)
        assert stays(waiting)
        servers.come_back()
        assert waiting.result(DEADLINE) == {PS[0]: 1, PS[1]: 2}
        assert servers.parameter_servers() == {PS[0]: 1, PS[1]: 2}
        assert servers.lost_since(known, 0.0) == [PS[1]]  # it holds nothing of what it held
    assert stays(ended, 0.5)  # nor is it waited for any more
    assert f"{GONE}; training goes on from its last checkpoint when it is back" in capfd.readouterr().err


def test_a_worker_that_is_lost_while_a_server_is_away(servers, ended):
    """Neither ends the job."""
    servers.monitor._policy = dataclasses.replace(servers.monitor._policy, workers=frozenset(), workers_grace=DEADLINE)
    with servers.restoring(lambda: True):
        servers.end()
        wait_until(lambda: servers.monitor.lost == PS[1:])
        servers.end_worker()
        wait_until(lambda: len(servers.monitor.lost) == 2)
        assert stays(ended)
        servers.come_back()
        wait_until(lambda: servers.all_parameter_servers(0.0))


def test_a_server_that_stays_away_ends_the_job(servers, ended):
    with servers.restoring(lambda: True):
        servers.end()
        assert ended.result(DEADLINE) == f"{GONE}; it did not come back within 0.3 s"


def test_a_server_that_is_lost_when_the_training_ends_ends_the_job(servers, ended):
    with servers.restoring(lambda: True):
        servers.end()
        wait_until(lambda: servers.monitor.lost)
        assert not ended.done()
    assert ended.result(DEADLINE) == GONE


def test_a_worker_that_is_lost_makes_no_server_lost(servers, ended):
    with servers.restoring(lambda: True):
        servers.end_worker()
        wait_until(lambda: servers.monitor.lost)
        assert servers.lost_since(servers.parameter_servers(), 0.0) == []
    assert ended.result(DEADLINE).endswith("the workers did not come back within 0.3 s")
