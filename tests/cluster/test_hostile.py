"""Descriptions of jobs that platforms or users have written wrongly: a cluster, or one line that says why."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile import examples, parsed, texts, variables
from tf2dist.cluster import environments, rendezvous
from tf2dist.cluster.environments import slurm
from tf2dist.cluster.spec import ClusterError

_JSON = (
    '{"cluster": {"chief": ["a:1"], "worker": ["b:2222", "[fe80::1]:3"], "ps": ["c:3"]}, '
    '"task": {"type": "worker", "index": 1}, "environment": "cloud"}',
    '{"cluster": {"master": ["a:1"], "ps": {"0": "c:1", "1": "c:2"}}, "task": {"type": "ps", "index": "1"}}',
    '{"cluster":{"workerpool0":["a:1"],"workerpool1":["b:1"],"workerpool3":["d:1"]},"task":{"type":"workerpool3","index":0}}',
)
_HOSTS = '["algo-1", "algo-2"]'
_SLURM = {
    "SLURM_STEP_NODELIST": ("a[1-3,07],b", "n[1-2]-x[3-4]", "node1"),
    "SLURM_STEP_NUM_TASKS": ("4", "2", "1"),
    "SLURM_PROCID": ("0", "3"),
    "SLURM_STEP_TASKS_PER_NODE": ("1(x4)", "2(x1),2", "2"),
    "TF2DIST_TASKS": ("chief:1,worker:2,ps:1", "worker:4"),
    "TF2DIST_PORT": ("7000", ""),
    "SLURM_JOB_ID": ("42",),
    "SLURM_STEP_ID": ("0",),
    "SLURM_NODEID": ("0",),
}


def check(environ):
    """The environment describes a cluster that has sane addresses, no cluster, or is refused."""
    found = parsed(ClusterError, environments.find, environ)
    if found and found.cluster:
        assert all(0 < found.cluster.port(task) < 65536 for task in found.cluster.tasks)
        assert all(address.isprintable() for task in found.cluster.tasks for address in [found.cluster.address(task)])
    return found


@examples()
@given(st.sampled_from(["TF_CONFIG", "CLUSTER_SPEC"]), variables(*_JSON))
def test_json_of_a_cluster(name, text):
    check({name: text, "TF2DIST_JOB_ID": text})


@examples()
@given(variables(_HOSTS), variables("algo-1"))
def test_sagemaker(hosts, this):
    check({"SM_HOSTS": hosts, "SM_CURRENT_HOST": this})


@examples()
@given(
    st.fixed_dictionaries({name: st.sampled_from(right) for name, right in _SLURM.items()}),
    st.dictionaries(
        st.sampled_from([*_SLURM]), st.one_of(*(variables(*right) for right in _SLURM.values())), max_size=3
    ),
)
def test_slurm(right, wrong):
    check({**right, **wrong})


@examples()
@given(texts(*_SLURM["SLURM_STEP_NODELIST"], "a[1-2][3-4][5-6]"), texts(*_SLURM["SLURM_STEP_TASKS_PER_NODE"]))
def test_lists_of_nodes(nodes, counts):
    parsed(ClusterError, slurm.hosts_of, nodes)
    parsed(ClusterError, slurm.counts_of, counts)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SLURM_STEP_NODELIST": "a[1-99999999999]"}, "more than 65535"),
        ({"SLURM_STEP_NODELIST": "a" + "[0-99]" * 9}, "more than 65535"),
        ({"SLURM_STEP_NODELIST": "a[0-1]" * 9000}, "more than 65535"),
        ({"SLURM_STEP_NODELIST": f"a[{'1' * 5000}]"}, "no range"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x99999999999)"}, "more than 65535"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1" * 5000}, "SLURM_STEP_TASKS_PER_NODE is"),
        ({"SLURM_STEP_NUM_TASKS": "99999999999", "SLURM_STEP_TASKS_PER_NODE": ""}, "SLURM_STEP_NUM_TASKS is"),
        ({"SLURM_STEP_NUM_TASKS": "1" * 5000}, "SLURM_STEP_NUM_TASKS is"),
        ({"TF2DIST_TASKS": "worker:99999999999"}, "TF2DIST_TASKS"),
        ({"TF2DIST_TASKS": "worker:" + "1" * 5000}, "TF2DIST_TASKS"),
        ({"TF2DIST_PORT": "1" * 5000}, "TF2DIST_PORT is"),
        ({"SLURM_PROCID": "1" * 5000}, "SLURM_PROCID is"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_slurm_of_too_many(changed, said):
    """A few characters must not take all memory, or the afternoon."""
    environ = {name: right[0] for name, right in _SLURM.items()} | {"SLURM_STEP_NODELIST": "a[1-4]", **changed}
    check(environ)
    with pytest.raises(ClusterError) as error:
        environments.find(environ)
    assert said in str(error.value)
    assert len(str(error.value)) < 5000


@examples()
@given(
    st.lists(texts("a:1", "[::1]:2", "b.example:2222"), max_size=3),
    st.lists(texts("a:1", "[::1]:2", "b.example:2222"), max_size=3),
    st.none() | texts("ps", "worker", "evaluator"),
    st.none() | st.integers(),
)
def test_host_flags(ps, workers, job, index):
    parsed(ClusterError, environments.from_hosts, ps, workers, job, index)


@examples()
@given(variables("120", "0.5"))
def test_a_time_limit(text):
    def limit():
        os.environ["TF2DIST_START_TIMEOUT"] = text
        try:
            return rendezvous.start_timeout()
        finally:
            del os.environ["TF2DIST_START_TIMEOUT"]

    seconds = parsed(ClusterError, limit)
    assert seconds is None or 0 < seconds < float("inf")


def test_a_long_description_is_not_repeated_in_full():
    with pytest.raises(ClusterError) as error:
        environments.find(
            {"TF_CONFIG": json.dumps({"cluster": {"worker": "x" * 100_000}, "task": {"type": "worker", "index": 0}})}
        )
    assert len(str(error.value)) < 5000
    assert str(error.value).startswith('job worker must be a list of "host:port", found')


@pytest.mark.parametrize("text", [
    '{"cluster": {"worker": ["a:1", %s]}, "task": {"type": "worker", "index": 0}}',
    '{"cluster": {"worker": ["a:1"]}, "task": %s}',
    '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}, "environment": %s}',
], ids=["cluster", "task", "elsewhere"])  # fmt: skip
def test_any_depth(text):
    for depth in range(900, 1010, 5):
        check({"TF_CONFIG": text % ("[" * depth + "]" * depth)})
