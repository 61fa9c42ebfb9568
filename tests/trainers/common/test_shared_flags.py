import json

import pytest
from absl import flags as absl_flags
from absl.testing import flagsaver

from tf2dist.cluster.roles import Role
from tf2dist.cluster.spec import ClusterError, Task
from tf2dist.errors import UsageError
from tf2dist.system import gpus
from trainers.common import shared_flags

TF1 = ("--ps_hosts=p:1", "--worker_hosts=w:1,w:2")
PEERS = ("--worker_hosts=w:1,w:2",)


@pytest.fixture
def read(monkeypatch):
    """read(*arguments, cluster=..., task=...): what these flags say, with a TF_CONFIG or without."""

    def read(*arguments, cluster=None, task=("worker", 0)):
        monkeypatch.delenv("TF_CONFIG", raising=False)
        if cluster:
            config = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
            monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        with flagsaver.flagsaver():
            assert absl_flags.FLAGS(["trainer", *arguments]) == ["trainer"]
            return shared_flags.read()

    return read


def test_nothing_said(read):
    shared = read()
    assert shared == shared_flags.SharedFlags(
        strategy="one", cluster=None, replicas=None, ps=1, workers=2, logdir=None, seed=1, xla=False,
        mixed_precision=False, report=None,
    )  # fmt: skip
    assert (shared.role, shared.leads, shared.layout) == (Role.SOLO, True, "1 process")
    assert not shared.needs_local_cluster


def test_everything_said(read):
    shared = read("--strategy=multiworker", "--workers=3", "--replicas=2", "--logdir=l", "--seed=0", "--xla",
                  "--mixed_precision", "--report=r")  # fmt: skip
    assert shared == shared_flags.SharedFlags(
        strategy="multiworker", cluster=None, replicas=2, ps=1, workers=3, logdir="l", seed=0, xla=True,
        mixed_precision=True, report="r",
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ("--job_name=worker", "--task_index=1"),
        ("--job_name=worker", "--task_id=1"),
        ("-job_name=worker", "-task_index=1"),
        ("-job_name", "worker", "-task_id", "1"),
    ],
)
def test_the_start_up_flags_of_tensorflow_1(read, arguments):
    shared = read("-ps_hosts=p:1", "-worker_hosts", "w:1, w:2", *arguments)
    assert shared.strategy == "ps"
    assert shared.cluster.spec == {"ps": ["p:1"], "worker": ["w:1", "w:2"]}
    assert shared.cluster.task == Task("worker", 1)


@pytest.mark.parametrize(
    ("arguments", "strategy", "role", "leads"),
    [
        ((*TF1, "--job_name=worker", "--task_index=0"), "ps", Role.COORDINATOR, True),
        ((*TF1, "--job_name=worker", "--task_index=1"), "ps", Role.SERVER, False),
        ((*TF1, "--job_name=ps"), "ps", Role.SERVER, False),
        ((*PEERS, "--job_name=worker", "--task_index=0"), "multiworker", Role.PEER, True),
        ((*PEERS, "--job_name=worker", "--task_index=1"), "multiworker", Role.PEER, False),
        (("--worker_hosts=w:1", "--job_name=worker"), "one", Role.SOLO, True),
    ],
)
def test_the_strategy_follows_from_the_hosts(read, arguments, strategy, role, leads):
    shared = read(*arguments)
    assert (shared.strategy, shared.role, shared.leads) == (strategy, role, leads)
    assert not shared.needs_local_cluster


@pytest.mark.parametrize(
    ("cluster", "task", "strategy", "role", "leads"),
    [
        ({"chief": ["c:1"], "ps": ["p:1"], "worker": ["w:1"]}, ("chief", 0), "ps", Role.COORDINATOR, True),
        ({"chief": ["c:1"], "ps": ["p:1"], "worker": ["w:1"]}, ("worker", 0), "ps", Role.SERVER, False),
        ({"chief": ["c:1"], "worker": ["w:1"]}, ("chief", 0), "multiworker", Role.PEER, True),
        ({"chief": ["c:1"], "worker": ["w:1"]}, ("worker", 0), "multiworker", Role.PEER, False),
        ({"worker": ["w:1", "w:2"]}, ("worker", 0), "multiworker", Role.PEER, True),
        ({"worker": ["w:1"]}, ("worker", 0), "one", Role.SOLO, True),
        ({"chief": ["w:1"]}, ("chief", 0), "one", Role.SOLO, True),
    ],
)
def test_the_strategy_follows_from_tf_config(read, cluster, task, strategy, role, leads):
    shared = read(cluster=cluster, task=task)
    assert (shared.strategy, shared.role, shared.leads) == (strategy, role, leads)


def test_a_strategy_that_is_said_stays(read):
    assert read("--strategy=mirrored", cluster={"worker": ["w:1"]}).strategy == "mirrored"
    assert read("--strategy=multiworker", cluster={"worker": ["w:1"]}).role is Role.PEER


def test_host_flags_go_before_tf_config(read):
    shared = read(*PEERS, "--job_name=worker", "--task_index=1", cluster={"worker": ["other:1"]})
    assert shared.cluster.address() == "w:2"


@pytest.mark.parametrize("strategy", ["ps", "multiworker"])
def test_several_processes_and_no_cluster_means_a_local_one(read, strategy):
    shared = read(f"--strategy={strategy}")
    assert shared.needs_local_cluster
    assert shared.leads


def test_the_size_of_a_local_cluster_is_that_of_the_cluster_in_its_tasks(read):
    # They are started with the same command line.
    cluster = {"chief": ["c:1"], "ps": ["p:1", "p:2"], "worker": ["w:1", "w:2", "w:3"]}
    shared = read("--strategy=ps", "--ps=2", "--workers=3", cluster=cluster, task=("ps", 1))
    assert shared.role is Role.SERVER
    for wrong in ("--ps=1", "--workers=2"):
        with pytest.raises(UsageError, match=f"{wrong} is for a local cluster"):
            read("--strategy=ps", wrong, cluster=cluster, task=("ps", 1))


@pytest.mark.parametrize(
    ("cluster", "layout"),
    [
        ({"chief": ["c:1"], "ps": ["p:1", "p:2"], "worker": ["w:1"]}, "1 chief, 2 ps, 1 worker"),
        ({"ps": ["p:1"], "worker": ["w:1", "w:2"]}, "1 ps, 2 workers"),
        ({"worker": ["w:1", "w:2", "w:3"]}, "3 workers"),
    ],
)
def test_layout(read, cluster, layout):
    assert read(cluster=cluster).layout == layout


@pytest.mark.parametrize(
    ("arguments", "cluster", "replicas", "with_gpus"),
    [
        (["--strategy=one"], None, 1, 1),
        (["--strategy=ps", "--workers=5"], None, 1, 1),
        (["--strategy=mirrored"], None, 2, None),
        (["--strategy=central", "--replicas=3"], None, 3, 3),
        (["--strategy=mirrored", "--replicas=1"], None, 1, 1),
        (["--strategy=multiworker"], None, 2, None),
        (["--strategy=multiworker", "--workers=3", "--replicas=2"], None, 6, 6),
        (["--replicas=2"], {"worker": ["w:1", "w:2", "w:3"]}, 6, 6),
        ([], {"chief": ["c:1"], "worker": ["w:1", "w:2"]}, 3, None),
        (["--replicas=2"], {"worker": ["w:1", "w:2"], "evaluator": ["e:1"]}, 4, 4),
    ],
)
def test_replicas_in_sync(read, monkeypatch, arguments, cluster, replicas, with_gpus):
    shared = read(*arguments, cluster=cluster)
    for found, expected in (((), replicas), (("0",), with_gpus)):
        monkeypatch.setattr(gpus, "visible", lambda found=found: found)
        assert shared.replicas_in_sync() == expected


@pytest.mark.parametrize("value", ["", "{}", " "])
def test_an_empty_tf_config_is_none(read, monkeypatch, value):
    monkeypatch.setenv("TF_CONFIG", value)
    with flagsaver.flagsaver():
        absl_flags.FLAGS(["trainer"])
        assert shared_flags.read().cluster is None


def test_what_does_not_go_together(read):
    with pytest.raises(ClusterError, match="one runs in one process, but the cluster has 2 tasks"):
        read("--strategy=one", cluster={"worker": ["w:1", "w:2"]})
    with pytest.raises(UsageError, match="--xla"):
        read("--strategy=ps", "--xla")
    with pytest.raises(UsageError, match="--replicas=2 needs a strategy with several"):
        read("--replicas=2", cluster={"worker": ["w:1"]})
