"""Clusters, servers and sessions of TensorFlow 1, and what takes their place."""

import numpy as np
import pytest

from tests.parity import regression, tf1
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


STEPS = 20


def pinned_by_tf1():
    tf = tf1.begin()
    server, cluster, _, index = tf1.serve(tf)
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
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        weights = regression.tf1_train(tf, tf.train.GradientDescentOptimizer(0.1), STEPS, server.target)
    return server.target, (float(value), [placed.get(t.op.name) for t in (first, second, total)]), weights


def pinned_here():
    import tf2dist

    strategy = tf2dist.join("ps")
    import keras
    import tensorflow as tf

    x = tf.constant(2.0)
    with tf.device("/job:worker/task:1"):
        first = x - 66
    with tf.device("/job:worker/task:0"):
        second = x + 300
        total = first + second
    update = tf2dist.ParameterServer("sync")  # with all workers together, each update is one of the whole batch
    trained = regression.fit(lambda: keras.optimizers.SGD(0.1), STEPS, strategy=strategy, parameter_server=update)
    return (float(total), [t.device for t in (first, second, total)]), regression.weights(trained)


@pytest.fixture(scope="module")
def pinned():
    """What both say of 2 - 66 on task 1, 2 + 300 on task 0 and the sum there; and the weights of a training."""
    theirs = tf1_cluster(pinned_by_tf1, {"ps": 1, "worker": 2})["worker 0"]
    return theirs, cluster(pinned_here, {"ps": 1, "chief": 1, "worker": 2})["chief 0"]


def test_session_and_its_target(pinned):
    """What a client ran in the session of a server's target, the coordinator runs: arithmetic, and a training."""
    (target, (theirs, _), their_weights), ((ours, _), weights) = pinned
    assert target.startswith("grpc://127.0.0.1:")
    assert ours == theirs == 238.0
    regression.assert_close(weights, their_weights)


def test_device_of_a_job_and_task(pinned):
    """The same device strings put the same operations on the same tasks."""
    (_, (_, theirs), _), ((_, ours), _) = pinned
    assert ours == theirs == [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in (1, 0, 0)]


NUMBERS = np.random.default_rng(3).random(100).astype(np.float32)
POINTS = np.random.default_rng(4).random((100, 100, 2)).astype(np.float32)
CUTS = (40, 41, 43, 50, 60, 75, 80, 99)  # of our shards, which differ in size; those of TensorFlow 1 are halves


def divided_by_tf1():
    """A copy of the graph on each task, for its half of the work; then, of the training of a model."""
    tf = tf1.begin()
    server, cluster, _, index = tf1.serve(tf)
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
    optimizer, half = tf.train.GradientDescentOptimizer(0.1), regression.BATCH // 2
    means, counts, towers = [], [], []
    for task in range(2):
        with tf.device(f"/job:worker/task:{task}"):
            part = slice(50 * task, 50 * (task + 1))
            means.append(tf.reduce_mean(tf.constant(NUMBERS[part])))
            inside = tf.reduce_sum(tf.square(tf.constant(POINTS[part])), -1) < 1
            counts.append(tf.reduce_sum(tf.cast(inside, tf.int64)))
        with (
            tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{task}")),
            tf.variable_scope("", reuse=tf.AUTO_REUSE),
        ):
            rows = slice(half * task, half * (task + 1))
            towers.append(optimizer.compute_gradients(regression.tf1_loss(tf, x[rows], y[rows])))
    averages = [((first + second) / 2, variable) for (first, variable), (second, _) in zip(*towers, strict=True)]
    train = optimizer.apply_gradients(averages)
    if index:
        return None
    with tf.Session(server.target) as session:
        mean, count = session.run([(means[0] + means[1]) / 2, counts[0] + counts[1]])
        session.run(tf.global_variables_initializer())
        for step in range(STEPS):
            session.run(train, dict(zip((x, y), regression.batch(step), strict=True)))
        return float(mean), int(count), session.run(tf.trainable_variables())


def divided_here():
    """Mean, count, size and process of each shard, the processes of the workers, and the weights of the training."""
    import tf2dist

    strategy = tf2dist.join("ps")
    import keras
    import tensorflow as tf

    process = "/proc/self/stat"  # begins with the number of the process that reads it
    shards = list(zip(np.split(NUMBERS, CUTS), np.split(POINTS, CUTS), strict=True))

    def work(shard):
        """The first shard is not done before the others are."""
        number, path, numbers, points = shard
        with tf.device("/job:ps/task:0"):
            done = tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shared_name="done")
        end = tf.timestamp() + 30

        def wait():
            waits = lambda: (tf.raw_ops.QueueSizeV2(handle=done) < len(shards) - 1) & (tf.timestamp() < end)  # noqa: E731
            tf.while_loop(waits, lambda: (), ())
            return 0

        def say():
            tf.raw_ops.QueueEnqueueV2(handle=done, components=[1])
            return 0

        tf.cond(number == 0, wait, say)
        inside = tf.reduce_sum(tf.cast(tf.reduce_sum(tf.square(points), -1) < 1, tf.int64))
        found = tf.reduce_mean(numbers), inside, tf.size(numbers), tf.strings.split(tf.io.read_file(path))[0]
        return tuple(one[None] for one in found)

    found = tf2dist.map_reduce(
        work,
        ((number, process, *shard) for number, shard in enumerate(shards)),
        lambda a, b: tuple(np.concatenate(pair) for pair in zip(a, b, strict=True)),
        strategy=strategy,
    )
    workers = []
    for task in range(2):
        with tf.device(f"/job:worker/task:{task}"):
            workers.append(tf.strings.split(tf.io.read_file(process))[0].numpy())
    update = tf2dist.ParameterServer("sync")
    trained = regression.fit(lambda: keras.optimizers.SGD(0.1), STEPS, strategy=strategy, parameter_server=update)
    return found, workers, regression.weights(trained)


def test_in_graph_replication():
    """The work of one client, a part on each task: a mean, the points for π, and gradients of halves of a batch."""
    mean, count, their_weights = tf1_cluster(divided_by_tf1, {"ps": 1, "worker": 2})["worker 0"]
    found, workers, weights = cluster(divided_here, {"ps": 1, "chief": 1, "worker": 2})["chief 0"]
    means, counts, sizes, processes = found
    assert len(sizes) == len(CUTS) + 1
    np.testing.assert_allclose(np.average(means, weights=sizes), mean, rtol=1e-6)
    np.testing.assert_allclose(mean, NUMBERS.mean(), rtol=1e-6)
    assert abs(means.mean() / mean - 1) > 0.01  # so the weights matter
    assert sum(counts) == count == int(((POINTS**2).sum(-1) < 1).sum())
    # While one worker was at the first shard, the other one was free, and got all that came after.
    first, *others = processes
    (free,) = set(others)
    assert {first, free} <= set(workers)
    regression.assert_close(weights, their_weights)
