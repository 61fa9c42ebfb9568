import json

import pytest

from tf2dist.cluster.spec import AnyJobs, Cluster, ClusterError, Task

JOBS = {"chief": ("c:1",), "worker": ("w:1", "w:2"), "ps": ("p:1",)}


def config(cluster=None, task=None, **more):
    """The text of a TF_CONFIG; a part that is None is left out."""
    parts = {"cluster": cluster, "task": task, **more}
    return json.dumps({name: part for name, part in parts.items() if part is not None})


def refused(text):
    """The one line in which a TF_CONFIG is refused."""
    with pytest.raises(ClusterError) as caught:
        Cluster.from_tf_config(text)
    said = str(caught.value)
    assert said
    assert "\n" not in said
    assert len(said) < 400
    return said


@pytest.mark.parametrize("task", [Task("chief", 0), Task("worker", 1), Task("ps", 0)], ids=str)
def test_tf_config_there_and_back(task):
    cluster = Cluster(JOBS, task)
    again = Cluster.from_tf_config(cluster.to_tf_config())
    assert again == cluster
    assert again.task == task
    assert json.loads(cluster.to_tf_config()) == {
        "cluster": {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]},
        "task": {"type": task.job, "index": task.index},
    }


def test_what_a_cluster_says():
    cluster = Cluster(JOBS, Task("worker", 1))
    assert [str(task) for task in cluster.tasks] == ["chief 0", "worker 0", "worker 1", "ps 0"]
    assert [cluster.count(job) for job in ("chief", "worker", "ps", "evaluator")] == [1, 2, 1, 0]
    assert (cluster.address(), cluster.port()) == ("w:2", 2)
    assert (cluster.address(Task("ps", 0)), cluster.port(Task("ps", 0))) == ("p:1", 1)
    assert cluster.at(Task("ps", 0)) == Cluster(JOBS, Task("ps", 0))


def test_the_most_tasks_that_share_a_host():
    assert Cluster({"ps": ("a:1",), "worker": ("a:2", "b:1", "A:3")}, Task("ps", 0)).most_tasks_on_a_host == 3


def test_other_parts_of_tf_config_are_ignored():
    text = config({"worker": ["a:1"]}, {"type": "worker", "index": 0, "trial": ""}, environment="cloud", rpc_layer="x")
    assert Cluster.from_tf_config(text) == Cluster({"worker": ("a:1",)}, Task("worker", 0))


@pytest.mark.parametrize(("index", "meant"), [(0, 0), (1, 1), ("0", 0), ("1", 1), ("01", 1)])
def test_an_index_may_be_text(index, meant):
    text = config({"worker": ["a:1", "b:1"]}, {"type": "worker", "index": index})
    assert Cluster.from_tf_config(text).task == Task("worker", meant)


@pytest.mark.parametrize("index", [True, None, 0.0, 1.5, "", "one", "-1", " 1", [0], {}], ids=repr)
def test_an_index_that_is_no_number(index):
    said = refused(config({"worker": ["a:1", "b:1"]}, {"type": "worker", "index": index}))
    assert "whole number" in said
    assert repr(index) in said


@pytest.mark.parametrize(("index", "told"), [(2, "from 0 to 1"), (-1, "from 0 to 1"), (10**12, "from 0 to 1")])
def test_an_index_out_of_range(index, told):
    said = refused(config({"worker": ["a:1", "b:1"]}, {"type": "worker", "index": index}))
    assert f"worker {index}" in said
    assert told in said


@pytest.mark.parametrize("text", ["{", "", "worker", "{'cluster': 1}", '{"a": 1,}', "[" * 100_000, "1" * 5000, "\0"])
def test_not_json(text):
    said = refused(text)
    assert "TF_CONFIG" in said
    if text.isprintable():
        assert text[:30] in said


@pytest.mark.parametrize("text", ["[]", "1", "null", '"a"', "{}", '{"task": {}}', '{"cluster": ["a:1"]}'])
def test_no_cluster_in_it(text):
    said = refused(text)
    assert '"cluster"' in said
    assert text in said


def test_a_message_stays_one_short_line_whatever_was_found():
    said = refused(json.dumps({"worker": [f"host{i}:2222" for i in range(1000)], "task": 1}, indent=4))
    assert '"cluster"' in said


@pytest.mark.parametrize("task", [None, 1, [], "worker", {}, {"type": "worker"}, {"index": 0}], ids=repr)
def test_no_task_in_it(task):
    said = refused(config({"worker": ["a:1"]}, task))
    assert '"task"' in said
    assert json.dumps(task) in said


@pytest.mark.parametrize(
    ("cluster", "task", "told"),
    [
        ({"worker": ["a:1"]}, ("ps", 0), "this task is ps 0"),
        ({"worker": ["a:1"], "ps": []}, ("ps", 0), "this task is ps 0"),
        ({"worker": ["a:1"]}, ("chief", 0), "jobs are worker"),
        ({"worker": ["a:1"]}, ("master", 0), "this task is master 0"),
        ({"worker": ["a:1"]}, ("wor\nker", 0), "this task is wor"),
        ({"chief": ["a:1", "b:1"], "worker": ["c:1"]}, ("worker", 0), "2 chiefs, a:1, b:1"),
        ({"worker": ["a:1", "a:1"]}, ("worker", 0), "a:1 is given to worker 0 and to worker 1"),
        ({"worker": ["a:1"], "ps": ["b:1", "a:1"]}, ("worker", 0), "a:1 is given to worker 0 and to ps 1"),
        ({"worker": ["host:1", "HOST:1"]}, ("worker", 0), "HOST:1 is given to worker 0 and to worker 1"),
        ({"worker": ["a:1", "a:01"]}, ("worker", 0), "a:01 is given to worker 0 and to worker 1"),
        ({"ps": ["a:1"]}, ("ps", 0), "no worker, found only ps"),
        ({"ps": ["a:1"], "worker": []}, ("ps", 0), "no worker"),
        ({"evaluator": ["a:1"]}, ("evaluator", 0), "no worker"),
        ({"worker": []}, ("worker", 0), "no worker"),
        ({}, ("worker", 0), "no jobs"),
        ({"worker": ["a:1"], "master": ["b:1"]}, ("worker", 0), "unknown job 'master'"),
        ({"Worker": ["a:1"]}, ("Worker", 0), "unknown job 'Worker'"),
        ({"worker": "a:1"}, ("worker", 0), "found 'a:1'"),
        ({"worker": {"0": "a:1"}}, ("worker", 0), "found {'0': 'a:1'}"),
        ({"worker": None}, ("worker", 0), "found None"),
    ],
)  # fmt: skip
def test_clusters_that_cannot_be(cluster, task, told):
    assert told in refused(config(cluster, {"type": task[0], "index": task[1]}))


@pytest.mark.parametrize(
    "address",
    ["a", "a:", ":1", "", " ", "a:0", "a:70000", "a:65536", "a:-1", "a:x", "a:1:2", "a b:1", " a:1", "a:1 ", "a:1\n",
     "a:٢", "http://a:1", "a/b:1", "::1:2222", "[::1]", "[::1]:", "[::1]:0", "[]:1", "[a:1", "a]:1", 1, None, ["a:1"]],
    ids=repr,
)  # fmt: skip
def test_addresses_that_are_none(address):
    said = refused(config({"worker": ["ok:1", address]}, {"type": "worker", "index": 0}))
    assert repr(address) in said
    assert '"host:port"' in said


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("a:1", 1),
        ("a:65535", 65535),
        ("10.0.0.1:2222", 2222),
        ("pc-01.example.com:2222", 2222),
        ("my_host:2222", 2222),
        ("[::1]:2222", 2222),
        ("[fe80::1%2]:2222", 2222),
        ("[::ffff:10.0.0.1]:2222", 2222),
    ],
)
def test_addresses_that_are_fine(address, port):
    cluster = Cluster.from_tf_config(config({"worker": [address]}, {"type": "worker", "index": 0}))
    assert (cluster.address(), cluster.port()) == (address, port)


@pytest.mark.parametrize("jobs", [{}, None, [], "worker", {"worker": ["a:1"], 3: ["b:1"]}], ids=repr)
def test_no_cluster_at_all(jobs):
    with pytest.raises(ClusterError, match=r"no jobs, found|unknown job 3"):
        Cluster(jobs, Task("worker", 0))


def test_data_workers_are_found_but_no_members_of_what_tensorflow_connects():
    jobs = {"worker": ["a:1"], "data_worker": ["d:1", "d:2"]}
    cluster = Cluster.from_tf_config(config(jobs, {"type": "data_worker", "index": 1}))
    assert (cluster.spec, cluster.described) == ({"worker": ["a:1"]}, jobs)
    assert cluster.address() == "d:2"
    assert Cluster.from_tf_config(cluster.to_tf_config()) == cluster
    with pytest.raises(ClusterError, match="a job cannot be called 'data_worker'"):
        AnyJobs({"local": ("h:1",), "data_worker": ("h:2",)}, Task("local", 0))


def test_an_evaluator_is_known_but_no_member_of_what_tensorflow_connects():
    text = config({"worker": ["a:1"], "evaluator": ["e:1"]}, {"type": "evaluator", "index": 0})
    cluster = Cluster.from_tf_config(text)
    assert cluster.task == Task("evaluator", 0)
    assert cluster.spec == {"worker": ["a:1"]}
    assert json.loads(cluster.to_tf_config())["cluster"] == {"worker": ["a:1"]}
    assert cluster.address() == "e:1"
    alone = Cluster.from_tf_config(config({"worker": ["a:1"]}, {"type": "evaluator", "index": 0}))
    assert alone.spec == {"worker": ["a:1"]}


def test_jobs_without_a_task_are_left_out_of_what_tensorflow_connects():
    assert Cluster({"worker": ("a:1",), "ps": ()}, Task("worker", 0)).spec == {"worker": ["a:1"]}


def test_a_cluster_cannot_be_changed():
    given = {"worker": ["a:1"]}
    cluster = Cluster(given, Task("worker", 0))
    given["worker"].append("b:1")
    cluster.spec["worker"].append("c:1")
    assert cluster.spec == {"worker": ["a:1"]}
    with pytest.raises(AttributeError):
        cluster.task = Task("worker", 1)
