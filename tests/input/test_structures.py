"""Several inputs and outputs, inputs alone, and numbers of other dtypes, as `keras.Model.fit` takes them."""

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import ONE_QUICKLY, strategies
from tests.models import ROWS
from tests.models import data as rows

strategy = strategies(ONE_QUICKLY)

BATCH = 16


def pair_model(outputs=1):
    """Two inputs (12 and 4 columns) and one or two outputs."""
    inputs = [keras.Input((12,)), keras.Input((4,))]
    hidden = keras.layers.Concatenate()(
        [
            keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=s))(x)
            for s, x in enumerate(inputs)
        ]
    )
    heads = [
        keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=7 + n), name=f"head{n}")(hidden)
        for n in range(outputs)
    ]
    model = keras.Model(inputs, heads if outputs > 1 else heads[0])
    losses = ["mse", "mae"][:outputs]
    model.compile(keras.optimizers.SGD(0.05), losses if outputs > 1 else "mse", weighted_metrics=[["mae"]] * outputs)
    return model


def pair_data():
    x, _ = rows()
    return x, x[:, :4] * 2.0, x[:, :1], np.abs(x[:, 1:2])


def same(ours, theirs):
    for a, b in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


def same_history(ours, theirs):
    assert ours.history.keys() == theirs.history.keys()
    for name, values in theirs.history.items():
        np.testing.assert_allclose(ours.history[name], values, rtol=2e-4, err_msg=name)


@pytest.mark.slow
def test_lists_of_inputs_and_outputs(strategy):
    """As lists, in which Keras's users give them, with a weight for each example of all outputs."""
    a, b, y1, y2 = pair_data()
    weight = np.linspace(0, 2, ROWS).astype(np.float32)
    for outputs, y, w in ((1, y1, None), (2, [y1, y2], None), (2, [y1, y2], weight)):
        theirs = pair_model(outputs)
        expected = theirs.fit([a, b], y, sample_weight=w, batch_size=BATCH, shuffle=False, epochs=2, verbose=0,
                              validation_data=([a, b], y))  # fmt: skip
        with strategy.scope():
            model = pair_model(outputs)
        history = tf2dist.fit(model, ([a, b], y, w), batch_size=BATCH, shuffle=False, epochs=2,
                              validation_data=[[a, b], y])  # fmt: skip
        same(model, theirs)
        same_history(history, expected)
        found = tf2dist.evaluate(model, ([a, b], y), batch_size=BATCH, return_dict=True)
        assert found == pytest.approx(
            theirs.evaluate([a, b], y, batch_size=BATCH, verbose=0, return_dict=True), rel=1e-3
        )


def test_a_list_is_several_inputs_to_predict(strategy, tf):
    a, b, _, _ = pair_data()
    with strategy.scope():
        model = pair_model(2)
    expected = model([a, b])
    dataset = tf.data.Dataset.from_tensor_slices(((a, b),)).batch(BATCH)  # each element is a tuple of one entry
    for kind, more in (([a, b], {"batch_size": BATCH}), (([a, b],), {"batch_size": BATCH}), (dataset, {})):
        found = tf2dist.predict(model, kind, **more)
        for ours, their in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, their, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["array", "list", "dict", "tuple of one", "none"])
def test_a_step_gets_what_keras_gives_it(tf, kind):
    """Inputs alone come as they are, in a tuple only where they are several."""
    x, _ = rows()
    given = {"array": x, "list": [x, x], "dict": {"a": x}, "tuple of one": (x,), "none": (x, None, None)}[kind]
    seen = []

    class See(keras.Model):
        def train_step(self, data):
            seen.append(tf.nest.map_structure(lambda t: t.dtype, data))
            return {"loss": tf.zeros([])}

    for fit in (
        lambda m: m.fit(*given[:1] if isinstance(given, tuple) else [given], verbose=0),
        lambda m: tf2dist.fit(m, given),
    ):
        model = See()
        model.compile()
        fit(model)
    tf.nest.assert_same_structure(seen[0], seen[-1])
    assert type(seen[0]) is type(seen[-1])


def test_float64_is_cast_as_keras_casts_it(tf):
    """Arrays become Keras's float type, and whole numbers stay what they are."""
    x, y = rows()
    dtypes = []

    class See(keras.Model):
        def train_step(self, data):
            dtypes.append([t.dtype.name for t in tf.nest.flatten(data)])
            return {"loss": tf.zeros([])}

    given = x.astype(np.float64), y, np.ones(ROWS, np.float16)
    model = See()
    model.compile()
    model.fit(*given[:2], sample_weight=given[2], verbose=0)
    tf2dist.fit(model, given)
    assert dtypes[0] == dtypes[-1] == ["float32", "int64", "float32"]


def test_steps_of_arrays(strategy):
    """`steps` bounds what is read; without a batch size it says how large batches are, as in Keras."""
    a, b, y, _ = pair_data()
    with strategy.scope():
        model = pair_model()
    theirs = pair_model()
    for arguments in ({"batch_size": BATCH, "steps": 3}, {"steps": 4}, {"batch_size": BATCH, "steps": 7}):
        expected = theirs.evaluate([a, b], y, verbose=0, return_dict=True, **arguments)
        assert tf2dist.evaluate(model, ([a, b], y), **arguments, return_dict=True) == pytest.approx(expected, rel=1e-4)
        expected = theirs.predict([a, b], verbose=0, **arguments)
        np.testing.assert_allclose(tf2dist.predict(model, [a, b], **arguments), expected, rtol=1e-4, atol=1e-6)
    examples = tf2dist.Examples(([a, b], y), BATCH)
    expected = theirs.evaluate([a[:32], b[:32]], y[:32], verbose=0, return_dict=True)
    assert tf2dist.evaluate(model, examples, steps=2, return_dict=True) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_validation_steps_of_arrays(tf):
    a, b, y, _ = pair_data()
    for arguments in ({"batch_size": BATCH, "validation_steps": 2}, {"steps_per_epoch": 5, "validation_steps": 3}):
        theirs, model = pair_model(), pair_model()
        expected = theirs.fit([a, b], y, shuffle=False, validation_data=([a, b], y), verbose=0, **arguments)
        found = tf2dist.fit(model, ([a, b], y), shuffle=False, validation_data=([a, b], y), **arguments)
        same_history(found, expected)
        same(model, theirs)


class Consistency(keras.layers.Layer):
    """Adds a loss of all its rows, which have no labels."""

    def call(self, inputs):
        self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
        return inputs


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_labelled_and_unlabelled_rows_of_different_numbers(strategy, tf, names):
    """No row is left out: those of the first part, or of the other ones."""
    x, _ = rows()
    labelled, unlabelled = names

    def made():
        inputs = {name: keras.Input((12,), name=name) for name in names}
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        model = keras.Model(inputs, [dense(inputs[labelled]), Consistency()(dense(inputs[unlabelled]))])
        model.compile(keras.optimizers.SGD(0.05), ["mse", None])
        return model

    few = tf.data.Dataset.from_tensor_slices((x[:64, :], x[:64, :1])).batch(16)
    many = tf.data.Dataset.from_tensor_slices(np.concatenate([x, 3 * x, 7 * x])[:256]).batch(64)
    dataset = tf.data.Dataset.zip(few, many).map(
        lambda few, many: ({labelled: few[0], unlabelled: many}, (few[1], few[1]))
    )
    theirs = made()
    expected = theirs.fit(dataset, epochs=2, verbose=0)
    with strategy.scope():
        model = made()
    history = tf2dist.fit(model, dataset, epochs=2)
    same(model, theirs)
    same_history(history, expected)
