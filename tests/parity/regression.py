"""The network that both sides of a parity test train: 3 -> 1, squared error, the same weights and batches.

And one whose loss is linear in its kernel: each update adds the same, whoever makes it, so the kernel counts updates.
"""

import numpy as np

BATCH, BATCHES = 8, 6
KERNEL = np.array([[0.5], [-1.0], [2.0]], np.float32)
BIAS = np.array([0.25], np.float32)
RATE, SLOPE = 0.01, np.array([[1.0], [-2.0], [0.5]], np.float32)  # of the linear loss


def data(rows=BATCH * BATCHES):
    """x f32[rows, 3], y f32[rows, 1]."""
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, 3)).astype(np.float32)
    return x, (x @ [[1.0], [2.0], [-1.0]] + 0.5 + 0.1 * random.normal(size=(rows, 1))).astype(np.float32)


def batch(step):
    """The batch of a step, in order and again from the start: x f32[8, 3], y f32[8, 1]."""
    x, y = data()
    rows = slice(step % BATCHES * BATCH, (step % BATCHES + 1) * BATCH)
    return x[rows], y[rows]


def tf1_loss(tf, x, y):
    """Makes the variables `kernel` and `bias`; returns the loss."""
    kernel = tf.get_variable("kernel", initializer=KERNEL)
    bias = tf.get_variable("bias", initializer=BIAS)
    return tf.reduce_mean(tf.square(tf.matmul(x, kernel) + bias - y))


def tf1_train(tf, optimizer, steps, target=""):
    """The weights after so many steps of an optimizer, batches fed through placeholders to a session."""
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
    train = optimizer.minimize(tf1_loss(tf, x, y), global_step=tf.train.get_or_create_global_step())
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        for step in range(steps):
            session.run(train, feed_dict=dict(zip((x, y), batch(step), strict=True)))
        return session.run(tf.trainable_variables())


def model(optimizer, loss="mse", **options):
    """The same network in Keras, compiled; in the scope of a strategy."""
    import keras

    begin = {
        "kernel_initializer": keras.initializers.Constant(KERNEL),
        "bias_initializer": keras.initializers.Constant(BIAS),
    }
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, **begin, **options)])
    made.compile(optimizer, loss)
    return made


def fit(optimizer, steps, *, strategy=None, **options):
    """Trains it by `tf2dist.fit` on the same batches in the same order; returns the model."""
    import tf2dist

    strategy = strategy or tf2dist.make_strategy("one")
    with strategy.scope():
        trained = model(optimizer())
    options = {"batch_size": BATCH, "shuffle": False, "steps_per_epoch": steps} | options
    tf2dist.fit(trained, data(), **options)
    return trained


def weights(trained):
    """The trained weights, as arrays."""
    import keras

    return [keras.ops.convert_to_numpy(v) for v in trained.trainable_variables]


def assert_close(ours, theirs):
    """Equal to float32 tolerance, array by array."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def tf1_push(tf):
    """Makes the variable `kernel`, the global step and an update of both by the linear loss; returns all three."""
    kernel, step = tf.get_variable("kernel", initializer=KERNEL), tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(kernel * SLOPE)
    return kernel, step, tf.train.GradientDescentOptimizer(RATE).minimize(loss, global_step=step)


def push(strategy, updates, **options):
    """Makes updates by the linear loss with `tf2dist.fit`; returns the count, the optimizer's own, and the kernel."""
    import keras

    import tf2dist

    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(KERNEL))
        model = keras.Sequential([keras.Input((3,)), layer])
        model.compile(keras.optimizers.SGD(RATE), lambda y, y_pred: keras.ops.sum(y_pred, -1))
    rows = np.repeat(SLOPE.T, 8, 0), np.zeros((8, 1), np.float32)
    tf2dist.fit(model, rows, batch_size=2, steps_per_epoch=updates, **options)
    return tf2dist.updates(model), int(model.optimizer.iterations.numpy()), weights(model)[0]


def assert_pushed(kernel, updates):
    """The kernel of the linear loss has had this many updates."""
    np.testing.assert_allclose(kernel, KERNEL - RATE * updates * SLOPE, rtol=1e-5)
