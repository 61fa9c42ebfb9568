"""Several workers: between-graph replication, asynchronous and synchronous, with and without backup workers."""

import numpy as np
import pytest

from tests.parity import regression, tf1
from tests.parity.processes import alone, cluster, tf1_cluster

pytestmark = pytest.mark.slow

UPDATES = 41


def pushed_in_tf1(updates):
    """Asynchronous workers; each update waits until the other worker is at one too, so both are under way at the last.

    A worker whose hook has read the step before the other's update came goes on once more, alone.

    Returns how many this worker has made, and step and kernel when both have ended.
    """
    tf = tf1.begin()
    server, cluster, _, index = tf1.serve(tf)
    turn = tf1.queue(tf, f"turn-{index}").enqueue(0)
    with tf.control_dependencies([turn]):
        both = tf1.queue(tf, f"turn-{1 - index}").dequeue()
    with (
        tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)),
        tf.control_dependencies([both]),
    ):
        kernel, step, train = regression.tf1_push(tf)
    say, wait = tf1.queue(tf, f"ended-{index}").enqueue(0), tf1.queue(tf, f"ended-{1 - index}").dequeue()
    made = 0
    with tf1.monitored(tf, server, index, [tf.train.StopAtStepHook(last_step=updates)]) as session:
        while not session.should_stop():
            session.run(train)
            made += 1
    with tf.Session(server.target) as session:
        session.run(turn)
        session.run(say)
        session.run(wait)
        return made, *session.run([step, kernel])


def pushed_here(updates):
    import tf2dist

    return regression.push(tf2dist.join("ps"), updates, steps_per_execution=4)


@pytest.fixture(scope="module")
def pushed():
    """How many updates two workers make when asked for UPDATES: what each of TensorFlow 1's returns, and ours."""
    theirs = tf1_cluster(pushed_in_tf1, {"ps": 1, "worker": 2}, UPDATES)
    ours = cluster(pushed_here, {"ps": 1, "chief": 1, "worker": 2}, UPDATES)["chief 0"]
    return (theirs["worker 0"], theirs["worker 1"]), ours


def test_between_graph_replication(pushed):
    """Every worker pushes its own gradients. Two of TensorFlow 1 that are both under way at the last step overshoot."""
    ((first, step, kernel), (second, _, _)), (updates, _, ours) = pushed
    assert UPDATES < step == first + second <= UPDATES + 2
    regression.assert_pushed(kernel, step)
    assert updates == UPDATES
    regression.assert_pushed(ours, UPDATES)


def stopped_in_tf1(updates):
    tf = tf1.begin()
    kernel, step, train = regression.tf1_push(tf)
    with tf.train.MonitoredSession(hooks=[tf.train.StopAtStepHook(last_step=updates)]) as session:
        while not session.should_stop():
            session.run(train)
            seen = tf1.without_hooks(session, [step, kernel])
    return seen


def test_stop_at_step(tf, pushed):
    """Training ends after that many updates: that of one process on both sides, that of two workers on ours only."""
    import tf2dist

    step, kernel = alone(stopped_in_tf1, UPDATES)
    updates, _, ours = regression.push(tf2dist.make_strategy("one"), UPDATES)
    assert updates == step == UPDATES
    for one in (kernel, ours):
        regression.assert_pushed(one, UPDATES)
    ((_, step, _), _), (updates, _, kernel) = pushed
    assert updates == UPDATES < step
    regression.assert_pushed(kernel, UPDATES)


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
    """Each update takes one of two gradients of each variable: those of `a` and `b` are late by turns.

    Worker 0 computes its gradient of `b` when the update has been made without it, and worker 1 its gradient of `a`.
    """
    tf = tf1.begin()
    server, cluster, _, index = tf1.serve(tf)
    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        a, b = (tf.get_variable(name, initializer=regression.KERNEL) for name in "ab")
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(regression.RATE), replicas_to_aggregate=1, total_num_replicas=2
        )
        begun = step.read_value()
        with tf.control_dependencies([begun]):
            soon = tf.constant((index + 1) * regression.SLOPE) * 1.0
            made = tf.while_loop(lambda i: step.read_value() <= begun, lambda i: i + 1, [0])
        with tf.control_dependencies([made]):
            late = tf.constant((index + 1) * regression.SLOPE) * 1.0
        pairs = ((late, a), (soon, b)) if index else ((soon, a), (late, b))
        train = optimizer.apply_gradients(pairs, global_step=step)
    hooks = [optimizer.make_session_run_hook(index == 0, num_tokens=0), tf.train.StopAtStepHook(last_step=updates)]
    with tf1.monitored(tf, server, index, hooks) as session:
        while not session.should_stop():  # also when the chief has left, and closed the queue of tokens
            session.run(train)
    if index:
        return None
    with tf.Session(server.target, config=tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:0"])) as session:
        return session.run([step, a, b])


def backed_up_here(updates):
    """Two layers that begin alike and get the same gradient, another one of each batch; with one backup worker."""
    import tf2dist

    strategy = tf2dist.join("ps")
    import keras

    begin = keras.initializers.Constant(regression.KERNEL)
    with strategy.scope():
        inputs = keras.Input((3,))
        layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer=begin, name=name) for name in "ab"]
        model = keras.Model(inputs, keras.layers.Add()([layer(inputs) for layer in layers]))
        model.compile(keras.optimizers.SGD(regression.RATE), lambda y, y_pred: keras.ops.sum(y_pred, -1))
    rows = np.arange(1, 9, dtype=np.float32)[:, None] * regression.SLOPE.T, np.zeros((8, 1), np.float32)
    update = tf2dist.ParameterServer("sync", backup_workers=1)
    history = tf2dist.fit(
        model, rows, batch_size=1, steps_per_epoch=updates, steps_per_execution=4, parameter_server=update
    ).history
    return tf2dist.updates(model), *regression.weights(model), sum(history["dropped_gradients"])


def test_backup_workers():
    """Updates that do not wait for all: late gradients are dropped. A variable there may get another worker's.

    There `a` has all its updates from worker 0 and `b` from worker 1, whose gradients are twice as large. Here both
    layers have theirs from the same worker in each update, whichever it was, and so stay alike.
    """
    step, a, b = tf1_cluster(backed_up_in_tf1, {"ps": 1, "worker": 2}, UPDATES)["worker 0"]
    assert step == UPDATES
    regression.assert_pushed(a, UPDATES)
    regression.assert_pushed(b, 2 * UPDATES)
    updates, a, b, dropped = cluster(backed_up_here, {"ps": 1, "chief": 1, "worker": 2}, UPDATES)["chief 0"]
    assert updates == UPDATES
    np.testing.assert_array_equal(a, b)
    pushes = (regression.KERNEL - a) / (regression.RATE * regression.SLOPE)
    np.testing.assert_allclose(pushes, round(float(pushes.mean())), rtol=1e-4)  # sums of whole numbers, 1 to 8 each
    assert UPDATES < pushes.mean() < 8 * UPDATES
    # Of two gradients of each update one is late, but for those under way at the beginning and the end.
    assert 0 < dropped <= UPDATES + 7
