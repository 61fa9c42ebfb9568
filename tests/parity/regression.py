"""The network that both sides of a parity test train: 3 -> 1, squared error, the same weights and batches."""

import numpy as np

BATCH, BATCHES = 8, 6
KERNEL = np.array([[0.5], [-1.0], [2.0]], np.float32)
BIAS = np.array([0.25], np.float32)


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


def tf1_train(tf, optimizer, steps):
    """The weights after so many steps of an optimizer, batches fed through placeholders."""
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
    train = optimizer.minimize(tf1_loss(tf, x, y), global_step=tf.train.get_or_create_global_step())
    with tf.Session() as session:
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
