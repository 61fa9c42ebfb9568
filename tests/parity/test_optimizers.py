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
        lambda keras: keras.optimizers.Adagrad(0.8),
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


def first_adagrad_step_in_tf1(begin, gradient):
    tf = tf1.begin()
    weight = tf.get_variable("weight", initializer=0.0)
    train = tf.train.AdagradOptimizer(1.0, initial_accumulator_value=begin).minimize(weight * gradient)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        return float(session.run(weight))


def first_adagrad_step_here(begin, gradient):
    import keras

    import tf2dist

    with tf2dist.make_strategy("one").scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(
            keras.optimizers.Adagrad(1.0, initial_accumulator_value=begin), lambda y, y_pred: keras.ops.sum(y_pred)
        )
    tf2dist.fit(model, (np.full((1, 1), gradient, np.float32), np.zeros((1, 1))), batch_size=1)
    return regression.weights(model)[0].item()


def test_adagrad(tf):
    """Both begin their sums of squares at 0.1. What Keras adds to it shows where it is small from the beginning."""
    regression.assert_close(here("adagrad"), alone(in_tf1, "adagrad"))
    begin, gradient = 1e-8, 1e-4
    squares = begin + gradient**2
    assert first_adagrad_step_here(begin, gradient) == pytest.approx(-gradient / (squares + 1e-7) ** 0.5, rel=1e-4)
    theirs = alone(first_adagrad_step_in_tf1, begin, gradient)
    assert theirs == pytest.approx(-gradient / squares**0.5, rel=1e-4)


BEGIN, PER_STEPS, FACTOR = 0.1, 6, 0.5


def decayed_in_tf1(staircase):
    """The weights, and the rate that the next step would have."""
    tf = tf1.begin()
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(BEGIN, step, PER_STEPS, FACTOR, staircase=staircase)
    weights = regression.tf1_train(tf, tf.train.GradientDescentOptimizer(rate), STEPS)
    with tf.Session() as session:
        session.run(step.assign(STEPS))
        return weights, float(session.run(rate))


def decayed_here(staircase):
    import keras

    schedule = keras.optimizers.schedules.ExponentialDecay(BEGIN, PER_STEPS, FACTOR, staircase=staircase)
    model = regression.fit(lambda: keras.optimizers.SGD(schedule), STEPS // 5, epochs=5)
    assert int(model.optimizer.iterations.numpy()) == STEPS
    return regression.weights(model), float(model.optimizer.learning_rate)


@pytest.mark.parametrize("staircase", [False, True], ids=["continuous", "staircase"])
def test_exponential_decay(tf, staircase):
    """The rate of every step, half of it every six: the same weights, and the same rate in the end."""
    (ours, our_rate), (theirs, rate) = decayed_here(staircase), alone(decayed_in_tf1, staircase)
    regression.assert_close(ours, theirs)
    decays = STEPS // PER_STEPS if staircase else STEPS / PER_STEPS
    assert our_rate == pytest.approx(rate, rel=1e-5)
    assert rate == pytest.approx(BEGIN * FACTOR**decays, rel=1e-5)


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
