"""AveragingSGD against the definition, and against TensorFlow 1's own moving averages."""

import keras
import numpy as np
import pytest

import tf2dist
from tests.models import classifier, data, weights
from tf2dist.compat.optimizers import overwrites_with_gradient
from tf2dist.optimizers.averaging import AveragingAdagrad, AveragingSGD


@pytest.mark.slow
def test_average_follows_its_definition(strategy):
    x, y = data()
    with strategy.scope():
        model = classifier(AveragingSGD(0.1, ema_momentum=0.9))
        plain = classifier(keras.optimizers.SGD(0.1))
    expected = weights(plain)
    for n in range(6):  # one update at a time; a plain SGD goes the same way
        tf2dist.fit(plain, (x, y), batch_size=len(x), shuffle=False, verbose=0)
        decay = min(0.9, (1 + n) / (10 + n))
        expected = [decay * a + (1 - decay) * w for a, w in zip(expected, weights(plain), strict=True)]
    tf2dist.fit(model, (x, y), batch_size=len(x), shuffle=False, epochs=6, verbose=0)
    for ours, theirs in zip(weights(model), expected, strict=True):  # fit ends with the averages as weights
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_same_as_tensorflow_1(tf):
    """`tf.train.ExponentialMovingAverage` with `num_updates`, in a graph and a session of TensorFlow 1."""
    values = [3.0, 1.0, -2.0, 5.0, 0.5]
    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable("v", initializer=7.0)
        step = tf1.get_variable("step", initializer=0, dtype=tf.int32)
        averages = tf1.train.ExponentialMovingAverage(0.99, num_updates=step)
        update = averages.apply([variable])
        value = tf1.placeholder(tf.float32, [])
        set_value, count = variable.assign(value), step.assign_add(1)
        session.run(tf1.global_variables_initializer())
        for v in values:
            session.run(set_value, {value: v})
            session.run(update)
            session.run(count)
        expected = session.run(averages.average(variable))

    ours = keras.Variable(7.0)
    optimizer = AveragingSGD(1.0, ema_momentum=0.99)
    optimizer.build([ours])
    for before, after in zip([7.0, *values], values, strict=False):
        optimizer.apply([tf.constant(before - after)])
    np.testing.assert_allclose(optimizer._model_variables_moving_average[0].numpy(), expected, rtol=1e-6)


def test_gradients_are_those_scale_to_global_batch(strategy):
    x, y = data()
    with strategy.scope():
        model = classifier(AveragingSGD(0.1, keep_gradients=True, use_ema=False))
    before = weights(model)
    tf2dist.fit(model, (x, y), batch_size=len(x), verbose=0)
    for kept, old, new in zip(model.optimizer.gradients, before, weights(model), strict=True):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(kept), (old - new) / 0.1, rtol=1e-3, atol=1e-5)


def test_survives_saving(tf, tmp_path):
    model = classifier(AveragingSGD(0.1, ema_momentum=0.9, keep_gradients=True))
    tf2dist.fit(model, data(), verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert again.optimizer.keep_gradients
    for a, b in zip(weights(again), weights(model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_swap_averages_goes_and_comes_back(tf):
    model = classifier(AveragingSGD(0.5))
    model.optimizer.build(model.trainable_variables)
    before = weights(model)
    model.trainable_variables[0].assign(model.trainable_variables[0] + 1)
    model.optimizer.swap_averages(model.trainable_variables)
    np.testing.assert_array_equal(weights(model)[0], before[0])
    model.optimizer.swap_averages(model.trainable_variables)
    np.testing.assert_array_equal(weights(model)[0], before[0] + 1)


@pytest.mark.parametrize("kind", [AveragingSGD, AveragingAdagrad])
def test_averages_follow_updates_and_not_batches_where_gradients_are_accumulated(tf, kind):
    """Three batches make an update: as one batch of all three does."""
    x, y = (rows[:96] for rows in data())
    optimizers = {32: kind(0.3, gradient_accumulation_steps=3), 96: kind(0.3)}
    averages = {}
    for size, optimizer in optimizers.items():
        with tf2dist.make_strategy("one").scope():
            model = classifier(optimizer)
        model.optimizer.build(model.trainable_variables)
        rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
        for batch in 3 * [*rows]:
            gradients = _gradients(tf, model, *batch)
            model.optimizer.apply(gradients, model.trainable_variables)
        assert int(model.optimizer.iterations) == 3
        averages[size] = [keras.ops.convert_to_numpy(a) for a in model.optimizer.averages]
        assert not np.allclose(averages[size][0], weights(model)[0], rtol=1e-3)
    for ours, theirs in zip(averages[32], averages[96], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def _gradients(tf, model, x, y):
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x))
    return tape.gradient(loss, [v.value for v in model.trainable_variables])


@pytest.mark.slow
def test_fit_with_accumulated_gradients(tf):
    """The same through `fit`, which ends with the averages as weights."""
    rows = tuple(part[:96] for part in data())
    found = {}
    for size, steps in ((32, 3), (96, None)):
        with tf2dist.make_strategy("one").scope():
            model = classifier(AveragingSGD(0.3, gradient_accumulation_steps=steps))
        tf2dist.fit(model, rows, batch_size=size, shuffle=False, epochs=3, verbose=0)
        found[size] = weights(model)
    for ours, theirs in zip(found[32], found[96], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_kept_gradients_of_a_table_are_those_of_all_its_rows(tf):
    """A row that is looked up twice has the sum of both, and one that is not looked up has none."""
    table = keras.layers.Embedding(4, 2)
    table.build()
    optimizer = AveragingSGD(0.1, keep_gradients=True, use_ema=False)
    optimizer.build(table.trainable_variables)
    for rows, counts in (([0, 1, 1], [1, 2, 0, 0]), ([3, 3, 3], [0, 0, 0, 3])):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(table(np.array(rows)))
        (gradient,) = tape.gradient(total, [table.embeddings.value])
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer.apply([gradient], table.trainable_variables)
        np.testing.assert_array_equal(optimizer.gradients[0].numpy(), np.outer(counts, [1, 1]))


def test_weights_that_their_gradients_overwrite_have_no_average(tf):
    """The scales of float8."""
    layer = keras.layers.Dense(4, dtype=keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "float32"))
    layer.build((None, 4))
    optimizer = AveragingSGD(0.1, keep_gradients=True)
    optimizer.build(layer.trainable_variables)
    scales = [v for v in layer.trainable_variables if overwrites_with_gradient(v)]
    assert scales
    assert sum(average is None for average in optimizer.averages) == len(scales)
    optimizer.apply([tf.ones_like(v.value) for v in layer.trainable_variables], layer.trainable_variables)
    before = layer.kernel.numpy()
    optimizer.swap_averages(layer.trainable_variables)
    assert not np.array_equal(layer.kernel.numpy(), before)
