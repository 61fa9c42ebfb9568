import itertools

import pytest

from tf2dist.cluster import Cluster, ClusterError, Task
from tf2dist.environments import from_environment, from_hosts

PS, WORKERS = ["p:1"], ["w:1", "w:2"]


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": " \n"}, {"TF_CONFIG": "{}"}], ids=repr)
def test_no_cluster_in_the_environment(environ):
    assert from_environment(environ) is None


def test_tf_config():
    cluster = Cluster({"worker": ("a:1",)}, Task("worker", 0))
    assert from_environment({"TF_CONFIG": f" {cluster.to_tf_config()}\n"}) == cluster


def test_tf_config_of_this_process(monkeypatch):
    cluster = Cluster({"worker": ("a:1",)}, Task("worker", 0))
    monkeypatch.setenv("TF_CONFIG", cluster.to_tf_config())
    assert from_environment() == cluster
    monkeypatch.delenv("TF_CONFIG")
    assert from_environment() is None


def test_a_wrong_tf_config():
    with pytest.raises(ClusterError, match="TF_CONFIG is not JSON"):
        from_environment({"TF_CONFIG": "worker"})


def test_the_topology_of_tensorflow_1():
    everyone = {"ps": ("p:1",), "worker": ("w:1", "w:2")}
    assert from_hosts(PS, WORKERS, "worker", 1) == Cluster(everyone, Task("worker", 1))
    assert from_hosts(PS, WORKERS, "ps", 0) == Cluster(everyone, Task("ps", 0))
    assert from_hosts([], WORKERS, "worker", 1) == Cluster({"worker": ("w:1", "w:2")}, Task("worker", 1))


def test_the_index_of_an_only_task_need_not_be_said():
    assert from_hosts(PS, WORKERS, "ps", None).task == Task("ps", 0)
    assert from_hosts([], ["w:1"], "worker", None).task == Task("worker", 0)


def expected(ps, workers, job, index):
    """What the combination of flags is answered with: the text of an error, or a task; None without a cluster."""
    if not workers:
        if ps:
            return "--ps_hosts=p:1 is given without --worker_hosts"
        if job:
            return f"--job_name={job} is given without --worker_hosts"
        return f"--task_index={index} is given without --worker_hosts" if index is not None else None
    if not job:
        return "need --job_name=ps|worker" if ps else "need --job_name=worker and"
    if job == "chief":
        return "unknown --job_name=chief; this job has " + ("ps, worker" if ps else "worker")
    if job == "ps" and not ps:
        return "unknown --job_name=ps; this job has worker"
    count = {"ps": 1, "worker": 2}[job]
    if index is None:
        return f"--job_name={job} has 2 tasks: which --task_index" if count > 1 else Task(job, 0)
    return Task(job, index) if index < count else f"this task is {job} {index}"


@pytest.mark.parametrize(
    ("ps", "workers", "job", "index"),
    list(itertools.product([[], PS], [[], WORKERS], [None, "", "ps", "worker", "chief"], [None, 0, 1, 2])),
)
def test_host_flags_in_all_combinations(ps, workers, job, index):
    answer = expected(ps, workers, job, index)
    if answer is None:
        assert from_hosts(ps, workers, job, index) is None
    elif isinstance(answer, Task):
        assert from_hosts(ps, workers, job, index).task == answer
    else:
        with pytest.raises(ClusterError) as caught:
            from_hosts(ps, workers, job, index)
        assert answer in str(caught.value)
        assert "\n" not in str(caught.value)


def test_wrong_addresses_in_host_flags():
    with pytest.raises(ClusterError, match="job ps has the address 'p'"):
        from_hosts(["p"], WORKERS, "worker", 0)
    with pytest.raises(ClusterError, match="w:1 is given to ps 0 and to worker 0"):
        from_hosts(["w:1"], WORKERS, "worker", 0)
