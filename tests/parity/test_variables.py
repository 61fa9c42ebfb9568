"""Variables, scopes and collections of a graph, and the layers and models that hold them now."""

import numpy as np
import pytest

from tests.parity import regression, tf1
from tests.parity.processes import alone, cluster

pytestmark = pytest.mark.slow

DIMENSIONS = np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)


SHAPE = (200, 100)
# Of TensorFlow 1 and of Keras, and whether both draw from the same distribution.
INITIALIZERS = {
    "default": (lambda tf: None, lambda keras: keras.initializers.GlorotUniform(seed=1), True),
    "normal": (
        lambda tf: tf.random_normal_initializer(0.5, 0.1, seed=1),
        lambda keras: keras.initializers.RandomNormal(0.5, 0.1, seed=1),
        True,
    ),
    "truncated normal": (
        lambda tf: tf.truncated_normal_initializer(0.5, 0.1, seed=1),
        lambda keras: keras.initializers.TruncatedNormal(0.5, 0.1, seed=1),
        True,
    ),
    "uniform": (
        lambda tf: tf.random_uniform_initializer(-1, 2, seed=1),
        lambda keras: keras.initializers.RandomUniform(-1, 2, seed=1),
        True,
    ),
    "normal, of itself": (
        lambda tf: tf.random_normal_initializer(seed=1),
        lambda keras: keras.initializers.RandomNormal(seed=1),
        False,
    ),
    "truncated normal, of itself": (
        lambda tf: tf.truncated_normal_initializer(seed=1),
        lambda keras: keras.initializers.TruncatedNormal(seed=1),
        False,
    ),
    "uniform, of itself": (
        lambda tf: tf.random_uniform_initializer(seed=1),
        lambda keras: keras.initializers.RandomUniform(seed=1),
        False,
    ),
}


def initialized_in_tf1():
    tf = tf1.begin()
    tf.set_random_seed(1)
    variable = tf.get_variable("v", initializer=DIMENSIONS)
    drawn = {
        name: tf.get_variable(name.replace(" ", "_").replace(",", ""), SHAPE, initializer=theirs(tf))
        for name, (theirs, _, _) in INITIALIZERS.items()
    }
    with tf.Session() as session:
        try:
            session.run(variable)
            error = None
        except tf.errors.FailedPreconditionError as failed:
            error = str(failed)
        session.run(tf.global_variables_initializer())
        return *session.run([variable, drawn]), error


def initialized_here():
    """What is in weights as soon as they are made, in the scope of a strategy."""
    import keras

    import tf2dist

    def made(initializer, rows, columns):
        layer = keras.layers.Dense(columns, use_bias=False, kernel_initializer=initializer)
        layer.build((None, rows))
        return keras.ops.convert_to_numpy(layer.kernel)

    with tf2dist.make_strategy("one").scope():
        value = made(keras.initializers.Constant(DIMENSIONS), 2, 2)
        assert isinstance(keras.layers.Dense(1).kernel_initializer, keras.initializers.GlorotUniform)
        return value, {name: made(ours(keras), *SHAPE) for name, (_, ours, _) in INITIALIZERS.items()}


def test_initializers(tf):
    """Variables have their values when they are made. A seed means other numbers, of the same distribution.

    But not of initializers that are called without their numbers: Keras's defaults are others.
    """
    value, drawn, error = alone(initialized_in_tf1)
    our_value, our_drawn = initialized_here()
    assert "uninitialized" in error or "does not exist" in error or "not found" in error.lower()
    np.testing.assert_array_equal(our_value, value)
    shares = np.linspace(0.05, 0.95, 19)
    for name, (_, _, same) in INITIALIZERS.items():
        theirs, ours = drawn[name].ravel(), our_drawn[name].ravel()
        # Of 20,000 numbers each, these quantiles differ by about 0.02 of the standard deviation, and seldom by 0.06.
        apart = np.abs(np.quantile(theirs, shares) - np.quantile(ours, shares)).max() / theirs.std()
        assert (apart < 0.08) == same, (name, apart)
        assert not np.isclose(theirs, ours, rtol=1e-3).all()
    for name, width in {"normal, of itself": 0.05, "truncated normal, of itself": 0.044}.items():
        assert our_drawn[name].std() == pytest.approx(width, rel=0.02)
        assert drawn[name].std() == pytest.approx(20 * width, rel=0.02)
    for numbers, low, high in ((our_drawn, -0.05, 0.05), (drawn, 0, 1)):
        least, greatest = (f(numbers["uniform, of itself"]) for f in (np.min, np.max))
        assert (least, greatest) == pytest.approx((low, high), abs=0.001)


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


COUNT = 7


def counted_in_tf1():
    tf = tf1.begin()
    kernel, step, train = regression.tf1_push(tf)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(COUNT):
            session.run(train)
        return tf.train.global_step(session, step), session.run(kernel)


def counted_here(strategy, *updates):
    """The counts and the kernel, for each way to make updates, in a job."""
    import tf2dist

    strategy = tf2dist.join(strategy)
    ways = [{"parameter_server": tf2dist.ParameterServer(update)} for update in updates] or [{}]
    return [regression.push(strategy, COUNT, **way) for way in ways]


def test_global_step(tf):
    """The updates that were made, as many as are in the weights: on every strategy, also with two workers or peers."""
    import tf2dist

    step, kernel = alone(counted_in_tf1)
    assert step == COUNT
    regression.assert_pushed(kernel, COUNT)
    ours = {name: regression.push(tf2dist.make_strategy(name), COUNT) for name in ("one", "mirrored", "central")}
    by_servers = cluster(counted_here, {"ps": 1, "chief": 1, "worker": 2}, "ps", "async", "sync")["chief 0"]
    ours |= dict(zip(("ps", "ps, synchronous"), by_servers, strict=True))
    peers = cluster(counted_here, {"worker": 2}, "multiworker")
    ours |= {name: counts for name, (counts,) in peers.items()}
    assert set(tf2dist.STRATEGIES) == {"one", "mirrored", "central", "ps", "multiworker"}  # these are all
    assert {name: counts[:2] for name, counts in ours.items()} == dict.fromkeys(ours, (COUNT, COUNT))
    for _, _, kernel in ours.values():
        regression.assert_pushed(kernel, COUNT)
