"""Clusters, servers and sessions of TensorFlow 1, and what takes their place."""

import numpy as np
import pytest

from tests.parity import tf1
from tests.parity.processes import alone, cluster, tf1_cluster

pytestmark = pytest.mark.slow

JOBS = {"ps": ("a:2222", "b:2222"), "worker": ("c:2222", "d:2222", "e:2222")}


def described_by_tf1():
    tf = tf1.begin()
    spec = tf.train.ClusterSpec({job: list(hosts) for job, hosts in JOBS.items()})
    addresses = {f"{job} {i}": spec.task_address(job, i) for job in spec.jobs for i in range(spec.num_tasks(job))}
    return spec.as_dict(), addresses


def test_cluster_spec():
    """Jobs, tasks and addresses are the same; `Cluster` knows besides which task it is in."""
    from tf2dist import Cluster, Task

    spec, addresses = alone(described_by_tf1)
    ours = Cluster(JOBS, Task("worker", 1))
    assert ours.spec == spec
    assert {str(task): ours.address(task) for task in ours.tasks} == addresses
    assert Cluster.from_tf_config(ours.to_tf_config()) == ours


def devices_of_tf1():
    tf = tf1.begin()
    server, *_ = tf1.serve(tf)
    with tf.Session(server.target) as session:
        return {device.name for device in session.list_devices() if device.device_type == "CPU"}


def devices_here():
    import tf2dist

    tf2dist.join("ps")
    import tensorflow as tf

    return {device.name for device in tf.config.list_logical_devices("CPU")}


def test_server():
    """A server each in every task; whoever is connected sees the devices of all. A coordinator here is a task too."""
    theirs = tf1_cluster(devices_of_tf1, {"ps": 1, "worker": 2})
    ours = cluster(devices_here, {"ps": 1, "worker": 2})
    assert len(theirs["worker 0"]) == 3
    assert theirs["worker 0"] == theirs["worker 1"]
    assert ours["worker 0"] - theirs["worker 0"] == {"/job:chief/replica:0/task:0/device:CPU:0"}
    assert theirs["worker 0"] < ours["worker 0"]


def test_server_join():
    """A ps of TensorFlow 1 runs on when all workers have ended; ours exits with status 0 (None comes from it)."""
    theirs = tf1_cluster(devices_of_tf1, {"ps": 2, "worker": 1})
    ours = cluster(devices_here, {"ps": 2, "worker": 1})
    assert [theirs["ps 0"], theirs["ps 1"]] == [True, True]
    assert [ours["ps 0"], ours["ps 1"]] == [None, None]


def pinned_by_tf1():
    tf = tf1.begin()
    server, _, _, index = tf1.serve(tf)
    x = tf.placeholder(tf.float32, [])  # what follows from constants alone is folded, wherever it was placed
    with tf.device("/job:worker/task:1"):
        first = x - 66
    with tf.device("/job:worker/task:0"):
        second = x + 300
        total = first + second
    if index:
        return None  # its server runs the operations that are placed on it
    options, metadata = tf.RunOptions(output_partition_graphs=True), tf.RunMetadata()
    with tf.Session(server.target) as session:
        value = session.run(total, {x: 2.0}, options, metadata)
    placed = {node.name: node.device for graph in metadata.partition_graphs for node in graph.node}
    return float(value), [placed.get(t.op.name) for t in (first, second, total)], server.target


def pinned_here():
    import tf2dist

    tf2dist.join("ps")
    import tensorflow as tf

    x = tf.constant(2.0)
    with tf.device("/job:worker/task:1"):
        first = x - 66
    with tf.device("/job:worker/task:0"):
        second = x + 300
        total = first + second
    return float(total), [t.device for t in (first, second, total)]


@pytest.fixture(scope="module")
def pinned():
    """What both say of 2 - 66 on task 1, 2 + 300 on task 0 and the sum there."""
    theirs = tf1_cluster(pinned_by_tf1, {"worker": 2})["worker 0"]
    return theirs, cluster(pinned_here, {"ps": 1, "chief": 1, "worker": 2})["chief 0"]


def test_session_and_its_target(pinned):
    """What a client ran in the session of a server's target, the coordinator runs."""
    (theirs, _, target), (ours, _) = pinned
    assert target.startswith("grpc://127.0.0.1:")
    assert ours == theirs == 238.0


def test_device_of_a_job_and_task(pinned):
    """The same device strings put the same operations on the same tasks."""
    (_, theirs, _), (_, ours) = pinned
    assert ours == theirs == [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in (1, 0, 0)]


NUMBERS = np.random.default_rng(3).random(100).astype(np.float32)
POINTS = np.random.default_rng(4).random((2, 5000, 2)).astype(np.float32)


def summed_by_tf1():
    tf = tf1.begin()
    server, _, _, index = tf1.serve(tf)
    means, counts = [], []
    for task, part in enumerate((NUMBERS[:50], NUMBERS[50:])):
        with tf.device(f"/job:worker/task:{task}"):
            means.append(tf.reduce_mean(tf.constant(part)))
            inside = tf.reduce_sum(tf.square(tf.constant(POINTS[task])), 1) < 1
            counts.append(tf.reduce_sum(tf.cast(inside, tf.int64)))
    if index:
        return None
    with tf.Session(server.target) as session:
        mean, count = session.run([(means[0] + means[1]) / 2, counts[0] + counts[1]])
        return float(mean), int(count)


def summed_here():
    import tf2dist

    strategy = tf2dist.join("ps")
    import tensorflow as tf

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def part(numbers, points):
        return tf.reduce_sum(numbers), tf.reduce_sum(tf.cast(tf.reduce_sum(tf.square(points), 1) < 1, tf.int64))

    parts = [coordinator.schedule(part, args) for args in zip((NUMBERS[:50], NUMBERS[50:]), POINTS, strict=True)]
    sums, counts = zip(*(p.fetch() for p in parts), strict=True)
    return float(sum(sums)) / len(NUMBERS), int(sum(counts))


def test_in_graph_replication():
    """One client, a part of the work on each task, the parts brought together: the mean, and the points for π."""
    (mean, count) = tf1_cluster(summed_by_tf1, {"worker": 2})["worker 0"]
    ours = cluster(summed_here, {"ps": 1, "chief": 1, "worker": 2})["chief 0"]
    np.testing.assert_allclose(ours[0], mean, rtol=1e-6)
    np.testing.assert_allclose(mean, NUMBERS.mean(), rtol=1e-6)
    assert ours[1] == count == int(((POINTS**2).sum(-1) < 1).sum())
