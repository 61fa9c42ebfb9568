"""The table of what the loss of a task means."""

import functools
import itertools
import re

import pytest

from tests.house.source import ROOT
from tf2dist.cluster import loss_policy
from tf2dist.cluster.loss_policy import WORKERS_GRACE, LossPolicy, OnLoss, on_loss
from tf2dist.cluster.spec import AnyJobs, Cluster, ClusterError, Task

CHIEF, EVALUATOR, DATA_WORKER = Task("chief", 0), Task("evaluator", 0), Task("data_worker", 0)
WORKERS = [Task("worker", i) for i in range(2)]
PS = [Task("ps", i) for i in range(2)]


@pytest.mark.parametrize("leader", [CHIEF, WORKERS[0]], ids=str)
def test_under_parameter_servers_a_job_goes_on_without_servers_and_workers(leader):
    for task in (CHIEF, EVALUATOR, *WORKERS, *PS):
        expected = {"worker": OnLoss.REPLACE, "ps": OnLoss.RESTORE}.get(task.job, OnLoss.END)
        assert on_loss(task, leader=leader, has_servers=True) is (OnLoss.END if task == leader else expected)


@pytest.mark.parametrize("has_servers", [True, False])
def test_a_job_waits_for_a_lost_data_worker(has_servers):
    """Also that of a strategy of one process: no pass over the data ends without it."""
    assert on_loss(DATA_WORKER, leader=CHIEF, has_servers=has_servers) is OnLoss.AWAIT
    counts = {"chief": 1, "worker": 2, "ps": 2} if has_servers else {"worker": 1}
    policy = LossPolicy.of(a_cluster(**counts, data_worker=2), has_servers=has_servers)
    lost = [DATA_WORKER, Task("data_worker", 1)]
    assert not policy.ends_job(lost)
    assert not policy.waits_for_workers(lost)
    assert [policy.is_data_worker(task) for task in (DATA_WORKER, *WORKERS, *PS)] == [True] + 4 * [False]
    assert loss_policy.summary(lost, leader=CHIEF, has_servers=has_servers) == (
        "when a data worker is lost, the job goes on, and the task is started again in its place, else the job ends"
    )


@pytest.mark.parametrize("task", [CHIEF, EVALUATOR, *WORKERS, Task("local", 1)], ids=str)
def test_elsewhere_every_loss_ends_the_job(task):
    assert on_loss(task, leader=CHIEF, has_servers=False) is OnLoss.END


def test_the_part_of_the_table_that_is_about_a_job():
    said = functools.partial(loss_policy.summary, has_servers=True)
    replaced = "when a worker is lost, the job goes on, and the task is started again in its place"
    restored = (
        "when a ps is lost, the task is started again in its place, and a fit with a Checkpoint goes on from it, else "
        "the job ends"
    )
    assert said([CHIEF, *PS, *WORKERS, EVALUATOR], leader=CHIEF) == (
        f"when chief 0 or an evaluator is lost, the job ends; {restored}; {replaced}"
    )
    assert said([*WORKERS, *PS], leader=WORKERS[0]) == f"when worker 0 is lost, the job ends; {replaced}; {restored}"
    assert loss_policy.summary(WORKERS, leader=WORKERS[0], has_servers=False) == (
        "when worker 0 or a worker is lost, the job ends"
    )


def a_cluster(**counts):
    ports = itertools.count(2222)
    jobs = {job: tuple(f"h:{next(ports)}" for _ in range(count)) for job, count in counts.items()}
    return Cluster(jobs, Task(next(iter(jobs)), 0))


def test_what_a_coordinator_does(monkeypatch):
    monkeypatch.delenv("TF2DIST_WORKERS_GRACE", raising=False)
    policy = LossPolicy.of(a_cluster(chief=1, worker=2, ps=2), has_servers=True)
    assert policy.workers_grace == WORKERS_GRACE
    for lost, ends, waits in (
        ([], False, False),
        ([WORKERS[0]], False, False),
        (WORKERS, False, True),
        ([PS[1]], True, False),
        ([*WORKERS, PS[0]], True, True),
    ):
        assert (policy.ends_job(lost), policy.waits_for_workers(lost)) == (ends, waits), lost
        assert not policy.ends_job(lost, restores_servers=True), lost
    assert policy.ends_job([CHIEF, PS[1]], restores_servers=True)
    assert [task for task in (CHIEF, EVALUATOR, *WORKERS, *PS) if policy.is_server(task)] == PS


def test_worker_0_that_coordinates_leads_a_server_of_the_same_name():
    policy = LossPolicy.of(a_cluster(worker=2, ps=1), has_servers=True)
    assert not policy.ends_job([WORKERS[0]])
    assert policy.waits_for_workers(WORKERS)


def test_what_other_leaders_do():
    for cluster in (a_cluster(worker=3), AnyJobs({"local": ("h:1", "h:2")}, Task("local", 0))):
        policy = LossPolicy.of(cluster, has_servers=False)
        assert not policy.ends_job([])
        assert policy.ends_job([cluster.tasks[1]])
        assert not policy.waits_for_workers(cluster.tasks)


def test_how_long_a_job_waits_for_workers(monkeypatch):
    monkeypatch.setenv("TF2DIST_WORKERS_GRACE", "2.5")
    assert LossPolicy.of(a_cluster(worker=2, ps=1), has_servers=True).workers_grace == 2.5
    monkeypatch.setenv("TF2DIST_WORKERS_GRACE", "soon")
    with pytest.raises(ClusterError, match="TF2DIST_WORKERS_GRACE is 'soon'; it must be a number of seconds above 0"):
        LossPolicy.of(a_cluster(worker=2, ps=1), has_servers=True)


def test_the_coordinators_own_worker_cannot_come_back():
    """Without a chief worker 0's server is a child of the coordinator, which nobody starts again."""
    cluster = Cluster({"worker": ("a:1", "b:1"), "ps": ("c:1",)}, Task("worker", 0))
    policy = LossPolicy.of(cluster, has_servers=True)
    own, other = Task("worker", 0), Task("worker", 1)
    assert not policy.ends_job([own])
    assert not policy.ends_job([other])
    assert policy.ends_job([own, other])


def test_which_workers_a_job_lets_go():
    own, *others = workers = [Task("worker", index) for index in range(3)]
    addresses = tuple(f"h:{index}" for index in range(1, 4))
    for jobs, led_by in (({"chief": ("c:1",)}, Task("chief", 0)), ({}, own)):
        cluster = Cluster({"worker": addresses, "ps": ("p:1",), **jobs}, led_by)
        policy = LossPolicy.of(cluster, has_servers=True, fewest_workers=2)
        assert policy.lets_go(others[0], [])
        assert policy.lets_go(own, []) == bool(jobs)  # else it is the leader's, and could not come back
        assert not policy.lets_go(others[0], [others[1]])
        assert not policy.lets_go(Task("ps", 0), [])
        fixed = LossPolicy.of(cluster, has_servers=True)
        assert not any(fixed.lets_go(worker, []) for worker in workers)


@pytest.mark.parametrize(
    "text", [loss_policy.__doc__, (ROOT / "docs" / "multihost.md").read_text()], ids=["code", "docs"]
)
def test_tables_for_readers_say_what_happens(text):
    """Each row of a table about losses: the tasks, and a cell for parameter servers and for lockstep."""
    table = text[text.index("| task | under parameter servers |") :].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    said = set()
    for tasks, *cells in rows:
        for name in re.findall("coordinator|data worker|worker|ps|peer|evaluator", tasks.partition("(")[0]):
            task = CHIEF if name == "coordinator" else Task("worker" if name == "peer" else name.replace(" ", "_"), 0)
            for has_servers, cell in zip((True, False), cells, strict=False):
                if cell in ("", "-"):
                    continue
                ends = on_loss(task, leader=CHIEF, has_servers=has_servers) is OnLoss.END
                assert ends == cell.startswith("ends the job"), (name, cell)
                said.add((name, has_servers))
    both = {(name, servers) for name in ("worker", "evaluator") for servers in (True, False)}
    assert said == {("coordinator", True), ("ps", True), ("data worker", True), ("peer", False), *both}


def test_what_a_task_that_has_lost_another_one_ends_with(monkeypatch):
    monkeypatch.delenv("TF2DIST_LOSS_STATUS", raising=False)
    assert loss_policy.status_after_loss() == 1
    monkeypatch.setenv("TF2DIST_LOSS_STATUS", str(loss_policy.LOST_ANOTHER))
    assert loss_policy.status_after_loss() == loss_policy.LOST_ANOTHER
