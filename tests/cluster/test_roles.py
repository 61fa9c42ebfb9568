import pytest

from tf2dist import STRATEGIES
from tf2dist.cluster.roles import Role, followers_of, leader_of, role_of
from tf2dist.cluster.spec import Cluster, ClusterError, Task

ONE = {"worker": ("a:1",)}
LONE_CHIEF = {"chief": ("a:1",)}
PEERS = {"worker": ("a:1", "b:1")}
PEERS_WITH_CHIEF = {"chief": ("c:1",), "worker": ("a:1", "b:1")}
TF1 = {"ps": ("p:1",), "worker": ("a:1", "b:1")}
TF1_SMALL = {"ps": ("p:1",), "worker": ("a:1",)}
WITH_CHIEF = {"chief": ("c:1",), "ps": ("p:1", "q:1"), "worker": ("a:1",)}
READER = {"worker": ("a:1",), "data_worker": ("d:1", "d:2")}
SERVED_DATA = {**WITH_CHIEF, "data_worker": ("d:1",)}
NO_WORKER = {"chief": ("c:1",), "ps": ("p:1",)}


def at(jobs, job, index):
    return None if jobs is None else Cluster(jobs, Task(job, index))


@pytest.mark.parametrize(
    ("strategy", "jobs", "task", "role"),
    [
        *[(name, None, ("", 0), Role.SOLO) for name in ("one", "mirrored", "central")],
        *[(name, ONE, ("worker", 0), Role.SOLO) for name in ("one", "mirrored", "central")],
        *[(name, LONE_CHIEF, ("chief", 0), Role.SOLO) for name in ("one", "mirrored", "central")],
        ("multiworker", ONE, ("worker", 0), Role.PEER),
        ("multiworker", PEERS, ("worker", 0), Role.PEER),
        ("multiworker", PEERS, ("worker", 1), Role.PEER),
        ("multiworker", PEERS_WITH_CHIEF, ("chief", 0), Role.PEER),
        ("multiworker", PEERS_WITH_CHIEF, ("worker", 0), Role.PEER),
        ("ps", TF1, ("worker", 0), Role.COORDINATOR),
        ("ps", TF1, ("worker", 1), Role.SERVER),
        ("ps", TF1, ("ps", 0), Role.SERVER),
        ("ps", TF1_SMALL, ("worker", 0), Role.COORDINATOR),
        ("ps", WITH_CHIEF, ("chief", 0), Role.COORDINATOR),
        ("ps", WITH_CHIEF, ("worker", 0), Role.SERVER),
        ("ps", WITH_CHIEF, ("ps", 1), Role.SERVER),
        *[(name, READER, ("worker", 0), Role.SOLO) for name in ("one", "mirrored", "central")],
        *[(name, READER, ("data_worker", 1), Role.SERVER) for name in ("one", "mirrored", "central")],
        ("ps", SERVED_DATA, ("chief", 0), Role.COORDINATOR),
        ("ps", SERVED_DATA, ("data_worker", 0), Role.SERVER),
        *[(name, ONE, ("evaluator", 0), Role.EVALUATOR) for name in STRATEGIES],
        ("ps", TF1, ("evaluator", 0), Role.EVALUATOR),
    ],
)
def test_role(strategy, jobs, task, role):
    assert role_of(strategy, at(jobs, *task)) is role


@pytest.mark.parametrize(
    ("strategy", "jobs", "task", "told"),
    [
        ("mirrored", PEERS, ("worker", 0), "strategy mirrored runs in one process.*2 tasks"),
        ("central", PEERS, ("worker", 1), "strategy central runs in one process.*2 tasks"),
        ("one", TF1, ("ps", 0), "strategy one runs in one process.*3 tasks"),
        ("ps", None, ("", 0), "--ps=1 --workers=2"),
        ("multiworker", None, ("", 0), "launch local --workers=2"),
        ("multiworker", TF1, ("worker", 0), "no parameter servers, but the cluster has 1"),
        ("multiworker", READER, ("worker", 0), "no data workers, but the cluster has 2: .*InputContext"),
        ("multiworker", READER, ("data_worker", 0), "no data workers, but the cluster has 2"),
        ("mirrored", {**PEERS, "data_worker": ("d:1",)}, ("data_worker", 0), "runs in one process.*2 tasks"),
        ("ps", READER, ("worker", 0), "at least one ps and one worker, found 0 and 1"),
        ("ps", ONE, ("worker", 0), "at least one ps and one worker, found 0 and 1"),
        ("ps", PEERS, ("worker", 1), "at least one ps and one worker, found 0 and 2"),
        ("ps", NO_WORKER, ("chief", 0), "at least one ps and one worker, found 1 and 0"),
    ],
)  # fmt: skip
def test_strategy_and_cluster_do_not_go_together(strategy, jobs, task, told):
    with pytest.raises(ClusterError, match=told) as caught:
        role_of(strategy, at(jobs, *task))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("jobs", "leader", "followers"),
    [
        (ONE, "worker 0", []),
        (PEERS, "worker 0", ["worker 1"]),
        (PEERS_WITH_CHIEF, "chief 0", ["worker 0", "worker 1"]),
        (TF1, "worker 0", ["ps 0", "worker 0", "worker 1"]),
        (WITH_CHIEF, "chief 0", ["ps 0", "ps 1", "worker 0"]),
        (READER, "worker 0", ["data_worker 0", "data_worker 1"]),
        (SERVED_DATA, "chief 0", ["ps 0", "ps 1", "worker 0", "data_worker 0"]),
        ({**PEERS, "evaluator": ("e:1",)}, "worker 0", ["worker 1"]),
        ({**WITH_CHIEF, "evaluator": ("e:1",)}, "chief 0", ["ps 0", "ps 1", "worker 0"]),
    ],
)
def test_leader_and_followers(jobs, leader, followers):
    for job, addresses in jobs.items():
        for index in range(len(addresses)):
            cluster = at(jobs, job, index)
            assert str(leader_of(cluster)) == leader
            assert [str(task) for task in followers_of(cluster)] == followers


@pytest.mark.parametrize("jobs", [TF1, TF1_SMALL, WITH_CHIEF])
def test_the_leader_waits_for_every_server_and_every_server_for_the_leader(jobs):
    cluster = at(jobs, "worker", 0)
    servers = {task for task in cluster.tasks if role_of("ps", cluster.at(task)) is Role.SERVER}
    waited_for = set(followers_of(cluster))
    # A coordinator that is worker 0 too has that worker's server as its child.
    assert waited_for - servers <= {leader_of(cluster)}
    assert servers <= waited_for


@pytest.mark.parametrize("jobs", [PEERS, PEERS_WITH_CHIEF])
def test_one_peer_leads_all_others(jobs):
    cluster = at(jobs, "worker", 0)
    assert {leader_of(cluster), *followers_of(cluster)} == set(cluster.tasks)
    assert leader_of(cluster) not in followers_of(cluster)
