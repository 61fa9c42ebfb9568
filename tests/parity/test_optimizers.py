"""Optimizers and what goes with them: the same weights after the same steps."""

import numpy as np
import pytest

from tests.parity import regression, tf1
from tests.parity.processes import alone

pytestmark = pytest.mark.slow

STEPS = 25
OPTIMIZERS = {
    "sgd": (
        lambda tf: tf.train.GradientDescentOptimizer(0.1),
        lambda keras: keras.optimizers.SGD(0.1),
    ),
    "momentum": (
        lambda tf: tf.train.MomentumOptimizer(0.05, 0.9),
        lambda keras: keras.optimizers.SGD(0.05, momentum=0.9),
    ),
    "nesterov": (
        lambda tf: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
        lambda keras: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    ),
    "adagrad": (
        lambda tf: tf.train.AdagradOptimizer(0.8),
        lambda keras: keras.optimizers.Adagrad(0.8, initial_accumulator_value=0.1),
    ),
    "adam": (
        lambda tf: tf.train.AdamOptimizer(0.01),
        lambda keras: keras.optimizers.Adam(0.01, epsilon=1e-8),
    ),
    "rmsprop": (
        lambda tf: tf.train.RMSPropOptimizer(0.01, epsilon=1e-10),
        lambda keras: keras.optimizers.RMSprop(0.01, epsilon=1e-10),
    ),
}


def in_tf1(name):
    tf = tf1.begin()
    return regression.tf1_train(tf, OPTIMIZERS[name][0](tf), STEPS)


def here(name):
    import keras

    import tf2dist

    if name != "rmsprop":
        return regression.weights(regression.fit(lambda: OPTIMIZERS[name][1](keras), STEPS))
    with tf2dist.make_strategy("one").scope():
        model = regression.model(OPTIMIZERS[name][1](keras))
        model.optimizer.build(model.trainable_variables)
        for squares in model.optimizer._velocities:
            squares.assign(keras.ops.ones_like(squares))  # as TensorFlow 1 began them
    tf2dist.fit(model, regression.data(), batch_size=regression.BATCH, shuffle=False, steps_per_epoch=STEPS)
    return regression.weights(model)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adagrad"])
def test_optimizers(tf, name):
    """The same weights, with the epsilons of TensorFlow 1."""
    regression.assert_close(here(name), alone(in_tf1, name))


def test_adagrad(tf):
    """Both begin their sums of squares at 0.1."""
    regression.assert_close(here("adagrad"), alone(in_tf1, "adagrad"))


def decayed_in_tf1(steps):
    tf = tf1.begin()
    step = tf.placeholder(tf.int64, [])
    rates = [tf.train.exponential_decay(0.001, step, 600, 0.99, staircase=s) for s in (False, True)]
    with tf.Session() as session:
        return [session.run(rates, {step: s}) for s in steps]


def decayed_here(steps):
    import keras

    schedule = keras.optimizers.schedules.ExponentialDecay
    rates = [schedule(0.001, 600, 0.99, staircase=s) for s in (False, True)]
    return [[float(rate(s)) for rate in rates] for s in steps]


def test_exponential_decay(tf):
    """Rates of the same steps, continuous and in stairs."""
    steps = [0, 1, 599, 600, 601, 5000, 100_000]
    np.testing.assert_allclose(decayed_here(steps), alone(decayed_in_tf1, steps), rtol=1e-6)


AVERAGE = 0.6  # from the thirteenth step on; until then (1 + step) / (10 + step), which is less


def averaged_and_counted(tf, descend, step):
    """Moving averages after a descent, then the count; `tf.group`, as in the tutorials, leaves the order open."""
    averages = tf.train.ExponentialMovingAverage(AVERAGE, num_updates=step)
    with tf.control_dependencies([descend]):
        averaged = averages.apply(tf.trainable_variables())
    with tf.control_dependencies([averaged]):
        return averages, step.assign_add(1)


def averaged_in_tf1():
    tf = tf1.begin()
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
    step = tf.train.get_or_create_global_step()
    descend = tf.train.GradientDescentOptimizer(0.1).minimize(regression.tf1_loss(tf, x, y))
    averages, train = averaged_and_counted(tf, descend, step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number in range(STEPS):
            session.run(train, dict(zip((x, y), regression.batch(number), strict=True)))
        return session.run([averages.average(v) for v in tf.trainable_variables()])


def averaged_here():
    from tf2dist.optimizers.averaging import AveragingSGD

    return regression.weights(regression.fit(lambda: AveragingSGD(0.1, ema_momentum=AVERAGE), STEPS))


def test_moving_averages(tf):
    """`fit` ends with the averages as the model's weights, which a program of TensorFlow 1 had to restore by hand."""
    regression.assert_close(averaged_here(), alone(averaged_in_tf1))


RATE, DECAY, SCALE, PER_TOWER = 0.1, 5.0, 0.02, regression.BATCH // 2


def average_gradients(tf, towers):
    """The mean of each variable's gradients over all towers, with the variable."""
    means = []
    for pairs in zip(*towers, strict=True):
        means.append((tf.reduce_mean(tf.stack([gradient for gradient, _ in pairs]), 0), pairs[0][1]))
    return means


def towers_in_tf1():
    tf = tf1.begin()
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
    with tf.device("/cpu:0"):
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(tf.train.exponential_decay(RATE, step, DECAY, 0.9))
        towers = []
        for tower in range(2):
            rows = slice(tower * PER_TOWER, (tower + 1) * PER_TOWER)
            with tf.device(f"/cpu:{tower + 1}"), tf.name_scope(f"tower_{tower}"):
                with tf.variable_scope("", reuse=tf.AUTO_REUSE):
                    loss = regression.tf1_loss(tf, x[rows], y[rows])
                    kernel = tf.get_variable("kernel")
                towers.append(optimizer.compute_gradients(loss + SCALE * tf.nn.l2_loss(kernel)))
        descend = optimizer.apply_gradients(average_gradients(tf, towers))
        averages, train = averaged_and_counted(tf, descend, step)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        session.run(tf.global_variables_initializer())
        for number in range(STEPS):
            session.run(train, dict(zip((x, y), regression.batch(number), strict=True)))
        return session.run([averages.average(v) for v in tf.trainable_variables()])


def towers_here(strategy):
    import keras

    import tf2dist
    from tf2dist.optimizers.averaging import AveragingSGD

    strategy = tf2dist.make_strategy(strategy, replicas=2)
    with strategy.scope():
        schedule = keras.optimizers.schedules.ExponentialDecay(RATE, DECAY, 0.9)
        optimizer = AveragingSGD(schedule, ema_momentum=AVERAGE)
        model = regression.model(optimizer, kernel_regularizer=keras.regularizers.L2(SCALE / 2))
    tf2dist.fit(model, regression.data(), batch_size=regression.BATCH, shuffle=False, steps_per_epoch=STEPS)
    return regression.weights(model)


@pytest.fixture(scope="module")
def towers():
    return alone(towers_in_tf1)


@pytest.mark.parametrize("strategy", ["central", "mirrored"])
def test_towers(tf, towers, strategy):
    """Two towers, gradients averaged, L2, a decaying rate and moving averages, all at once."""
    regression.assert_close(towers_here(strategy), towers)
