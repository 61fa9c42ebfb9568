"""Several workers: between-graph replication, asynchronous and synchronous, with and without backup workers."""

import numpy as np
import pytest

from tests.parity import regression, tf1
from tests.parity.processes import cluster, tf1_cluster

pytestmark = pytest.mark.slow

UPDATES = 40
SLOPE = np.array([[1.0], [-2.0], [0.5]], np.float32)


def pushed_in_tf1(updates):
    """Asynchronous workers and a loss that is linear in the weights: the order of updates does not matter."""
    tf = tf1.begin()
    server, cluster, _, index = tf1.serve(tf)
    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        kernel = tf.get_variable("kernel", initializer=regression.KERNEL)
        step = tf.train.get_or_create_global_step()
        train = tf.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_sum(kernel * SLOPE), global_step=step)
    other, mine = tf1.queue(tf, f"ended-{1 - index}"), tf1.queue(tf, f"ended-{index}")
    say, wait = mine.enqueue(0), other.dequeue()
    made = 0
    with tf1.monitored(tf, server, index, [tf.train.StopAtStepHook(last_step=updates)]) as session:
        while not session.should_stop():
            session.run(train)
            made += 1
    with tf.Session(server.target) as session:
        session.run(say)
        session.run(wait)
        return made, *session.run([step, kernel])


def pushed_here(updates, backups=None):
    import tf2dist

    strategy = tf2dist.join("ps")
    import keras

    def loss(y, y_pred):
        return keras.ops.sum(y_pred)

    with strategy.scope():
        begin = keras.initializers.Constant(regression.KERNEL)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer=begin)])
        model.compile(keras.optimizers.SGD(0.01), loss)
    rows = np.repeat(SLOPE.T, 4, 0), np.zeros((4, 1), np.float32)
    server = tf2dist.ParameterServer("async" if backups is None else "sync", backups or 0)
    history = tf2dist.fit(
        model, rows, batch_size=1, steps_per_epoch=updates, steps_per_execution=4, parameter_server=server
    ).history
    return tf2dist.updates(model), regression.weights(model)[0], sum(history.get("dropped_gradients", ()))


def test_between_graph_replication():
    """Every worker pushes its own gradients. Those of TensorFlow 1 overshoot, each by two updates at most."""
    theirs = tf1_cluster(pushed_in_tf1, {"ps": 1, "worker": 2}, UPDATES)
    (first, step, kernel), (second, _, _) = theirs["worker 0"], theirs["worker 1"]
    assert UPDATES <= step == first + second <= UPDATES + 4
    np.testing.assert_allclose(kernel, regression.KERNEL - 0.01 * step * SLOPE, rtol=1e-5)
    updates, ours, _ = cluster(pushed_here, {"ps": 1, "chief": 1, "worker": 2}, UPDATES)["chief 0"]
    assert updates == UPDATES
    np.testing.assert_allclose(ours, regression.KERNEL - 0.01 * UPDATES * SLOPE, rtol=1e-5)


def synchronous_in_tf1(updates):
    """Each worker computes gradients of its half of every batch."""
    tf = tf1.begin()
    server, cluster, _, index = tf1.serve(tf)
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        loss = regression.tf1_loss(tf, x, y)
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(0.1), replicas_to_aggregate=2, total_num_replicas=2
        )
        train = optimizer.minimize(loss, global_step=step)
    weights = tf.trainable_variables()
    # A worker may take the other's token and give two gradients to an update. So that none does, they wait for each
    # other after every step, and begin without the tokens that let a worker run ahead.
    other, mine = tf1.queue(tf, f"turn-{1 - index}"), tf1.queue(tf, f"turn-{index}")
    say, wait = mine.enqueue(0), other.dequeue()
    hooks = [optimizer.make_session_run_hook(index == 0, num_tokens=0)]
    rows = slice(index * regression.BATCH // 2, (index + 1) * regression.BATCH // 2)
    with tf1.monitored(tf, server, index, hooks) as session:
        for number in range(updates):
            session.run(train, {v: part[rows] for v, part in zip((x, y), regression.batch(number), strict=True)})
            tf1.without_hooks(session, say)
            tf1.without_hooks(session, wait)
        return tf1.without_hooks(session, [step, weights])


def synchronous_here(updates):
    import keras

    import tf2dist

    strategy = tf2dist.join("ps")
    model = regression.fit(
        lambda: keras.optimizers.SGD(0.1), updates, strategy=strategy, parameter_server=tf2dist.ParameterServer("sync")
    )
    return tf2dist.updates(model), regression.weights(model)


def test_synchronous_replicas():
    """Updates by the mean of both workers' gradients."""
    step, theirs = tf1_cluster(synchronous_in_tf1, {"ps": 1, "worker": 2}, UPDATES)["worker 0"]
    updates, ours = cluster(synchronous_here, {"ps": 1, "chief": 1, "worker": 2}, UPDATES)["chief 0"]
    assert updates == step == UPDATES
    regression.assert_close(ours, theirs)


def backed_up_in_tf1(updates):
    """Each update takes one of two gradients, all of which are the same."""
    tf = tf1.begin()
    server, cluster, _, index = tf1.serve(tf)
    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        kernel = tf.get_variable("kernel", initializer=regression.KERNEL)
        tries = tf.get_variable("tries", initializer=0, trainable=False)
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(0.01), replicas_to_aggregate=1, total_num_replicas=2
        )
        train = optimizer.minimize(tf.reduce_sum(kernel * SLOPE), global_step=step)
        count = tries.assign_add(1, use_locking=True)
    hooks = [optimizer.make_session_run_hook(index == 0), tf.train.StopAtStepHook(last_step=updates)]
    with tf1.monitored(tf, server, index, hooks) as session:
        while not session.should_stop():  # also when the chief has left, and closed the queue of tokens
            session.run([train, count])
    if index:
        return None
    with tf.Session(server.target, config=tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:0"])) as session:
        return session.run([step, tries, kernel])


def test_backup_workers():
    """Updates that do not wait for all: late gradients are dropped."""
    step, tries, theirs = tf1_cluster(backed_up_in_tf1, {"ps": 1, "worker": 2}, UPDATES)["worker 0"]
    updates, ours, dropped = cluster(pushed_here, {"ps": 1, "chief": 1, "worker": 2}, UPDATES, 1)["chief 0"]
    assert UPDATES <= step <= UPDATES + 4
    assert updates == UPDATES
    for made, kernel in ((step, theirs), (updates, ours)):
        np.testing.assert_allclose(kernel, regression.KERNEL - 0.01 * made * SLOPE, rtol=1e-5)
    # Two tokens, so two gradients, an update, one token to begin with, and a gradient of each worker under way.
    for late in (tries - step, dropped):
        assert 0 < late <= UPDATES + 4 + 3
