import contextlib
import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf2dist.cluster import environments
from tf2dist.cluster.environments import from_environment, from_hosts, slurm
from tf2dist.cluster.spec import Cluster, ClusterError, Task

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


HOSTS = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def config(cluster, **task):
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


@pytest.mark.parametrize(
    ("environ", "source", "task", "notes"),
    [
        ({"TF_CONFIG": config(HOSTS, type="ps", index=0)}, "TF_CONFIG", Task("ps", 0), 0),
        ({"TF_CONFIG": config(HOSTS, type="worker", index="1")}, "TF_CONFIG", Task("worker", 1), 1),
        (
            {"TF_CONFIG": config({"master": ["a:1"], **HOSTS} | {"chief": []}, type="ps", index=0)},
            ClusterError, "names chief twice", 0,
        ),
        (
            {"TF_CONFIG": config({"master": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, type="master", index=0)},
            "TF_CONFIG", Task("chief", 0), 1,
        ),
        (
            {"TF_CONFIG": config({**HOSTS, "worker": {"1": "c:1", "0": "b:1"}}, type="worker", index=1)},
            "TF_CONFIG", Task("worker", 1), 1,
        ),
        (
            {"TF_CONFIG": config({**HOSTS, "worker": {"1": "c:1"}}, type="worker", index=1)},
            ClusterError, "without a gap", 0,
        ),
        (
            {"TF_CONFIG": config({**HOSTS, "evaluator": ["e:1"]}, type="evaluator", index=0)},
            "TF_CONFIG", Task("evaluator", 0), 1,
        ),
        (
            {"CLUSTER_SPEC": config(
                {"workerpool0": ["a:1"], "workerpool1": ["b:1", "c:1"], "workerpool2": ["d:1"]},
                type="workerpool1", index=0,
            )},
            "CLUSTER_SPEC", Task("worker", 0), 3,
        ),
        (
            {"TF_CONFIG": json.dumps({"sparseCluster": {"worker": {"1": "c:1"}, "ps": ["d:1"]}, "task": {}})},
            ClusterError, "turn off enableDynamicWorker in a TFJob", 0,
        ),
        ({"CLUSTER_SPEC": "{"}, ClusterError, "CLUSTER_SPEC is not JSON", 0),
    ],
)  # fmt: skip
def test_what_platforms_say(environ, source, task, notes):
    if source is ClusterError:
        with pytest.raises(ClusterError, match=task):
            environments.find(environ)
        return
    found = environments.find(environ)
    assert (found.source, found.cluster.task, len(found.notes)) == (source, task, notes)
    assert found.cluster.spec == HOSTS


def test_sagemaker():
    found = environments.find({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"})
    assert found.cluster == Cluster({"worker": ("algo-1:2222", "algo-2:2222")}, Task("worker", 1))
    assert environments.find({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}).cluster is None
    with pytest.raises(ClusterError, match="none of SM_HOSTS"):
        environments.find({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-3"})
    with pytest.raises(ClusterError, match="a list of host names"):
        environments.find({"SM_HOSTS": "algo-1"})


STEP = {
    "SLURM_STEP_NODELIST": "n[08-10],m", "SLURM_STEP_TASKS_PER_NODE": "1(x3),2", "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_PROCID": "4", "SLURM_JOB_ID": "3",
}  # fmt: skip


def test_slurm():
    found = environments.find(STEP)
    addresses = ("n08:15192", "n09:15193", "n10:15194", "m:15195", "m:15196")
    assert found.cluster == Cluster({"worker": addresses}, Task("worker", 4))
    tasks = {"TF2DIST_TASKS": "chief:1,worker:2,ps:1,evaluator:1", "TF2DIST_PORT": "7000"}
    found = environments.find({**STEP, **tasks, "SLURM_PROCID": "3"})
    assert found.cluster.task == Task("ps", 0)
    assert found.cluster.spec == {"chief": ["n08:7000"], "worker": ["n09:7001", "n10:7002"], "ps": ["m:7003"]}
    assert environments.find({**STEP, **tasks}).cluster.task == Task("evaluator", 0)


def test_ports_of_two_slurm_jobs_do_not_overlap():
    """Each has 64, however far the jobs' numbers are apart."""
    first = [
        environments.find({**STEP, "SLURM_JOB_ID": str(n)}).cluster.address(Task("worker", 0)) for n in range(1500)
    ]
    ports = sorted({int(address.rpartition(":")[2]) for address in first})
    assert min(b - a for a, b in itertools.pairwise(ports)) == 64
    assert 15000 <= ports[0] < ports[-1] + 64 <= 32768


def test_steps_of_a_slurm_job_have_ports_of_their_own():
    """The first has those of the job."""

    def port(job, step):
        environ = {**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        return environments.find(environ).cluster.port(Task("worker", 0))

    assert port(3, 0) == 15192
    beside = sorted(port(job, step) for job in (3, 4, 5) for step in range(20))
    assert min(b - a for a, b in itertools.pairwise(beside)) == 64
    assert 15000 <= beside[0] < beside[-1] + 64 <= 32768


def test_a_job_has_a_name_where_something_gives_it_one():
    job = {"TF_CONFIG": config(HOSTS, type="ps", index=0)}
    assert environments.find(job).cluster.job_id == ""
    assert environments.find({**job, "TF2DIST_JOB_ID": "mine"}).cluster.at(Task("worker", 0)).job_id == "mine"
    assert environments.find({**STEP, "SLURM_STEP_ID": "2", "TF2DIST_JOB_ID": "outer"}).cluster.job_id == "3.2"


def test_a_slurm_task_is_where_it_is_taken_to_be():
    assert environments.find({**STEP, "SLURM_NODEID": "3"}).cluster.task == Task("worker", 4)
    with pytest.raises(ClusterError, match=r"task 1 is on n08, .* makes that n09; start them with srun --distribution"):
        environments.find({**STEP, "SLURM_PROCID": "1", "SLURM_NODEID": "0"})


def test_a_step_of_one_task_is_no_cluster():
    assert environments.find({**STEP, "SLURM_STEP_NUM_TASKS": "1"}).cluster is None
    assert environments.find({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_PROCID": "0"}).cluster is None  # in a batch script


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SLURM_STEP_NUM_TASKS": "6"}, "6 tasks in all"),
        ({"SLURM_STEP_NODELIST": "n[1"}, "cannot be read"),
        ({"SLURM_STEP_NODELIST": "n[3-1],m"}, "'3-1' is no range"),
        ({"SLURM_STEP_TASKS_PER_NODE": "two"}, "is 'two'"),
        ({"SLURM_PROCID": "5"}, "SLURM_PROCID is 5"),
        ({"SLURM_PROCID": ""}, "SLURM_PROCID is ''"),
        ({"TF2DIST_TASKS": "worker:2"}, "names 2 tasks, and srun has started 5"),
        ({"TF2DIST_TASKS": "boss:5"}, "TF2DIST_TASKS is 'boss:5'"),
    ],
)
def test_a_slurm_that_contradicts_itself(changed, said):
    with pytest.raises(ClusterError, match=re.escape(said)):
        environments.find({**STEP, **changed})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("a,b", ["a", "b"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("r[1-2]n[01-02].x", ["r1n01.x", "r1n02.x", "r2n01.x", "r2n02.x"]),
        ("a-[9-11],b[1]", ["a-9", "a-10", "a-11", "b1"]),
    ],
)
def test_node_lists(text, names):
    assert slurm.hosts_of(text) == names


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": ["worker"], "index": 0}}'}, "['worker']"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": {}, "index": 0}}'}, "{}"),
        ({"TF_CONFIG": config({"worker": ["a:1"]}, type="worker", index="9" * 5000)}, "index must be a whole number"),
        ({"TF_CONFIG": config({"worker": ["a..b:1"]}, type="worker", index=0)}, "'a..b:1'"),
        ({"TF_CONFIG": config({"worker": ["x" * 64 + ":1"]}, type="worker", index=0)}, "xxx:1'"),
        ({"TF_CONFIG": config({"worker": ["a\0b:1"]}, type="worker", index=0)}, "b:1'"),
        ({"TF_CONFIG": config({"worker": ["\udcff:1"]}, type="worker", index=0)}, ":1'"),
        ({"TF_CONFIG": "[" * 100_000}, "not JSON"),
        ({"CLUSTER_SPEC": "[" * 100_000}, "CLUSTER_SPEC"),
        ({"SM_HOSTS": "[" * 100_000, "SM_CURRENT_HOST": "a"}, "SM_HOSTS"),
        ({"SM_HOSTS": '["a", "a"]', "SM_CURRENT_HOST": "a"}, "a:2222"),
    ],
    ids=range(11),
)
def test_what_cannot_be_is_said_in_one_line(environ, said):
    with pytest.raises(ClusterError) as error:
        environments.find(environ)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("host", ["a_b", "a.b.", "xn--bcher-kva.example", "bücher.example", "[fe80::1]", "1.2.3.4"])
def test_hosts_that_can_be(host):
    found = environments.from_environment({"TF_CONFIG": config({"worker": [f"{host}:1"]}, type="worker", index=0)})
    assert found.address() == f"{host}:1"


_ANY = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_HOSTS = st.lists(st.sampled_from(["a:1", "b:2222", "[::1]:3", "a:0", "a", ""]) | _ANY, max_size=3)
_NAMES = st.sampled_from(["chief", "master", "worker", "ps", "evaluator", "workerpool0"]) | st.text()
_CLUSTERS = st.dictionaries(_NAMES, _HOSTS | st.dictionaries(st.sampled_from("012"), st.just("c:1")) | _ANY, max_size=4)
_TASKS = st.fixed_dictionaries({"type": _NAMES | _ANY, "index": st.sampled_from([0, 1, "0", "1", -1]) | _ANY})


@settings(max_examples=300, deadline=None, derandomize=True)
@given(name=st.sampled_from(["TF_CONFIG", "CLUSTER_SPEC"]), cluster=_CLUSTERS | _ANY, task=_TASKS | _ANY)
def test_anything_is_a_cluster_or_an_error_in_one_line(name, cluster, task):
    environ = {name: json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}
    with contextlib.suppress(ClusterError):
        found = environments.find(environ).cluster
        assert found is not None
        assert all(0 < found.port(task) < 65536 for task in found.tasks)
        assert Cluster.from_tf_config(found.to_tf_config()).spec == found.spec
        return
    with pytest.raises(ClusterError) as error:
        environments.find(environ)
    assert str(error.value).isprintable()
