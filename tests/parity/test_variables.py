"""Variables, scopes and collections of a graph, and the layers and models that hold them now."""

import numpy as np
import pytest

from tests.parity import regression, tf1
from tests.parity.processes import alone

pytestmark = pytest.mark.slow

DIMENSIONS = np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)


def initialized_in_tf1():
    tf = tf1.begin()
    variable = tf.get_variable("v", initializer=DIMENSIONS)
    drawn = tf.get_variable("w", [200, 100], initializer=tf.random_normal_initializer(seed=1))
    with tf.Session() as session:
        try:
            session.run(variable)
            error = None
        except tf.errors.FailedPreconditionError as failed:
            error = str(failed)
        session.run(tf.global_variables_initializer())
        return *session.run([variable, drawn]), error


def initialized_here():
    import keras

    layer = keras.layers.Dense(2, use_bias=False, kernel_initializer=keras.initializers.Constant(DIMENSIONS))
    drawn = keras.initializers.RandomNormal(stddev=1.0, seed=1)
    layer.build((None, 2))
    return layer.kernel.numpy(), np.asarray(drawn([200, 100]))


def test_initializers(tf):
    """Variables have their values when they are made. A seed means other numbers, of the same distribution."""
    value, drawn, error = alone(initialized_in_tf1)
    our_value, our_drawn = initialized_here()
    assert "uninitialized" in error or "does not exist" in error or "not found" in error.lower()
    np.testing.assert_array_equal(our_value, value)
    for numbers in (drawn, our_drawn):  # 20,000 of them: the mean is within 0.007 of 0, the variance 0.01 of 1
        assert abs(numbers.mean()) < 0.03
        assert abs(numbers.std() - 1) < 0.03
    assert not np.allclose(drawn, our_drawn)


def reused_in_tf1():
    tf = tf1.begin()

    def network(x):
        with tf.variable_scope("layer", reuse=tf.AUTO_REUSE):
            kernel = tf.get_variable("kernel", initializer=DIMENSIONS)
        return tf.tanh(tf.matmul(x, kernel))

    loss = tf.reduce_sum(network(network(tf.ones([1, 2]))))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(5):
            session.run(train)
        return [v.op.name for v in tf.trainable_variables()], session.run(tf.trainable_variables())


def reused_here():
    import keras

    import tf2dist

    with tf2dist.make_strategy("one").scope():
        layer = keras.layers.Dense(
            2, "tanh", use_bias=False, kernel_initializer=keras.initializers.Constant(DIMENSIONS), name="layer"
        )
        inputs = keras.Input((2,))
        model = keras.Model(inputs, layer(layer(inputs)))
        model.compile(keras.optimizers.SGD(0.1), lambda y, y_pred: keras.ops.sum(y_pred))
    tf2dist.fit(model, (np.ones((1, 2), np.float32), np.zeros((1, 2), np.float32)), batch_size=1, steps_per_epoch=5)
    return [v.path for v in model.trainable_variables], regression.weights(model)


def test_variable_scopes_and_reuse(tf):
    """A layer that is called twice has its weights once, as a scope that is reused."""
    names, theirs = alone(reused_in_tf1)
    paths, ours = reused_here()
    assert paths == names == ["layer/kernel"]
    regression.assert_close(ours, theirs)


SCALE = 0.01


def regularized_in_tf1():
    tf = tf1.begin()
    x, y = map(tf.constant, regression.batch(0))
    regularizer = lambda w: SCALE * tf.nn.l2_loss(w)  # noqa: E731  what tf.contrib.layers.l2_regularizer(SCALE) gave
    with tf.variable_scope("", regularizer=regularizer):
        loss = regression.tf1_loss(tf, x, y)
    tf.add_to_collection("losses", loss)
    for term in tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES):
        tf.add_to_collection("losses", term)
    total = tf.add_n(tf.get_collection("losses"))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(total)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        terms, first = session.run([tf.get_collection("losses"), total])
        for _ in range(5):
            session.run(train)
        return terms, float(first), session.run(tf.trainable_variables())


def regularized_here():
    import keras

    import tf2dist

    half = keras.regularizers.L2(SCALE / 2)
    with tf2dist.make_strategy("one").scope():
        model = regression.model(keras.optimizers.SGD(0.1), kernel_regularizer=half, bias_regularizer=half)
    terms = [float(term) for term in model.losses]
    x, y = regression.batch(0)
    first = tf2dist.evaluate(model, (x, y), batch_size=len(x), return_dict=True)["loss"]
    tf2dist.fit(model, (x, y), batch_size=len(x), steps_per_epoch=5)
    return terms, first, regression.weights(model)


def test_l2_regularizers(tf):
    """`l2_regularizer(scale)` is scale times half the sum of squares, `keras.regularizers.L2` times all of it."""
    theirs, ours = alone(regularized_in_tf1), regularized_here()
    np.testing.assert_allclose(sorted(ours[0]), sorted(theirs[0][1:]), rtol=1e-6)
    np.testing.assert_allclose(sum(ours[0]), SCALE / 2 * ((regression.KERNEL**2).sum() + 0.25**2), rtol=1e-6)


def test_collections_of_losses(tf):
    """What a graph collected and added up is in `model.losses` and added up by `fit`."""
    theirs, ours = alone(regularized_in_tf1), regularized_here()
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)
    np.testing.assert_allclose(ours[1], sum(theirs[0]), rtol=1e-6)
    regression.assert_close(ours[2], theirs[2])


def counted_in_tf1(steps):
    tf = tf1.begin()
    x, y = map(tf.constant, regression.batch(0))
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.1).minimize(regression.tf1_loss(tf, x, y), global_step=step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            session.run(train)
        return tf.train.global_step(session, step)


def counted_here(steps):
    import keras

    import tf2dist

    model = regression.fit(lambda: keras.optimizers.SGD(0.1), steps)
    return tf2dist.updates(model), int(model.optimizer.iterations.numpy())


def test_global_step(tf):
    """The updates that were made."""
    assert counted_here(7) == (7, 7)
    assert alone(counted_in_tf1, 7) == 7
