"""Layers, losses and metrics of the user's own in Keras's own step: Keras's numbers, or a reason before anything runs.

On several replicas each part is tried on slices of a batch.
"""

import logging
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tf2dist
from tests.conftest import quickly, sampled
from tests.jobs import run_program
from tests.programs import own_parts
from tests.programs.own_parts import CASES, REFUSED, Extremes, data, trained

EVERY = [name for name in CASES if name != "stateful"]


def assert_same(ours, expected):
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(ours[key], value, rtol=2e-4, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("name", sampled(CASES, ("learning rate", "compute_metrics"), EVERY))
def test_equals_keras_on_one_device(tf, name):
    strategy = tf2dist.make_strategy("one")
    assert_same(trained(name, tf2dist, strategy.scope), trained(name, keras.Model))


@pytest.mark.parametrize("strategy", quickly("mirrored", ("mirrored", "central"), rarely=("central",)))
@pytest.mark.parametrize("name", sampled(CASES, ("sum while training", "own state"), EVERY))
def test_equals_keras_or_is_refused_on_replicas(tf, name, strategy):
    scope = tf2dist.make_strategy(strategy, replicas=2).scope
    if name in REFUSED or (name, strategy) in REFUSED:
        why = REFUSED.get(name) or REFUSED[name, strategy]
        with pytest.raises((ValueError, tf2dist.errors.TrainingError), match=why):
            trained(name, tf2dist, scope)
    else:
        assert_same(trained(name, tf2dist, scope), trained(name, keras.Model))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["multiworker", "ps", "sync"])
def test_in_jobs(tf, tmp_path, layout):
    """A state that goes from batch to batch on a server's worker; what compares rows between peers."""
    workers = 1 if layout == "ps" else 2
    processes = [*(["--ps=1"] if layout in ("ps", "sync") else []), f"--workers={workers}"]
    names = {
        "multiworker": ["sum while training", "own state", "rank 1"],
        "ps": ["stateful", "learning rate", "extremes in the step", "compiled extremes in the step"],
        "sync": ["extremes, one row left"],
    }[layout] + ["extremes", "extremes in a layer", "largest from zero"]
    run_program(processes, "own_parts", layout, tmp_path / "out", *names)
    for name, found in own_parts.read(tmp_path / "out").items():
        if layout == "multiworker" and name in ("own state", "sum while training"):
            assert "does not come to the same on parts of a batch" in found
        elif (layout, name) == ("multiworker", "rank 1"):  # peers exchange no rows
            assert "that of outputs f[n], with sample weights" in found
        elif name == "learning rate":  # a worker logs what the rate was before its update
            assert np.all(found["history rate"] > trained(name, keras.Model)["history rate"])
        else:
            assert_same(found, trained(name, keras.Model))


def test_a_loss_is_tried_with_each_kind_of_data(tf):
    """That it is a mean without weights says nothing about one with weights."""

    class Weighted(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            losses = ops.mean(ops.square(y - y_pred), axis=-1)
            return ops.mean(losses) if sample_weight is None else ops.sum(sample_weight * losses) / ops.sum(losses)

    x, y = data()
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        inputs = keras.Input((3,))
        model = Weighted(inputs, layers.Dense(1)(inputs))
        model.compile("sgd")
    tf2dist.fit(model, x, y, batch_size=4, verbose=0)
    with pytest.raises(ValueError, match="compute_loss of Weighted must be a mean"):
        tf2dist.fit(model, x, y, sample_weight=np.arange(len(x), dtype=np.float32), batch_size=4, verbose=0)


class Same(layers.Layer):
    def call(self, inputs):
        return 1.0 * inputs


class SameInFunction(Same):
    """What its function has traced in a trial must not be what trains."""

    def build(self, shape):
        self.dropout = layers.Dropout(0.5)

    @tf.function
    def call(self, inputs, training=False):
        return self.dropout(1.0 * inputs, training=training)


def on_two_replicas(*parts, loss="mse", **kwargs):
    keras.utils.set_random_seed(0)
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        inputs = keras.Input((3,))
        hidden = inputs
        for part in parts:
            hidden = part(hidden)
        model = keras.Model(inputs, hidden)
        model.compile(keras.optimizers.SGD(0.0), loss, **kwargs)
    return model


@pytest.mark.parametrize(
    ("parts", "kwargs"),
    [
        ((Same, lambda: layers.Dropout(0.5), lambda: layers.Dense(1)), {"jit_compile": True}),
        ((SameInFunction, lambda: layers.Dense(1)), {}),
    ],
    ids=["XLA", "tf.function"],
)
def test_training_has_the_dropout_that_the_trial_has_not(tf, parts, kwargs):
    model, (x, y) = on_two_replicas(*(part() for part in parts), **kwargs), data()
    losses = tf2dist.fit(model, x, y, batch_size=4, epochs=3, verbose=0).history["loss"]
    assert len({round(loss, 3) for loss in losses}) == 3, losses


class CountsBatches(layers.Layer):
    """A raw variable, which TensorFlow alone knows of."""

    def build(self, shape):
        kind = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.batches = tf.Variable(0.0, trainable=False, aggregation=kind)

    def call(self, inputs, training=False):
        if training:
            self.batches.assign_add(1.0)
        return 1.0 * inputs


def test_a_trial_writes_nothing(tf):
    layer = CountsBatches()
    model, (x, y) = on_two_replicas(layer, layers.Dense(1)), data()
    tf2dist.fit(model, x, y, batch_size=5, verbose=0)
    assert float(layer.batches.numpy()) == 2.0


@pytest.mark.parametrize(
    "layer",
    [lambda: layers.RandomFlip(), lambda: layers.Dropout(0.1, noise_shape=(None, 1, 1, 1))],
    ids=["flip", "dropout"],
)
def test_what_is_random_is_not_refused(tf, layer):
    """Whether runs are alike by accident differs from model to model."""
    for _ in range(4):
        with tf2dist.make_strategy("mirrored", replicas=2).scope():
            inputs = keras.Input((3, 3, 1))
            model = keras.Model(inputs, layers.Dense(1)(Same()(layers.Flatten()(layer()(inputs)))))
            model.compile("sgd", "mse")
        tf2dist.fit(model, np.ones((8, 3, 3, 1), np.float32), np.ones((8, 1)), batch_size=4, verbose=0)


def test_an_evaluation_is_not_refused_for_what_only_training_does(tf):
    kernel = keras.initializers.GlorotUniform(seed=1)  # of which others hardly differ between parts of the rows
    parts = layers.Dense(4, "tanh", kernel_initializer=kernel), own_parts.BalanceWhileTraining(), layers.Dense(1)
    model, (x, y) = on_two_replicas(*parts), data()
    assert tf2dist.evaluate(model, x, y, batch_size=4, verbose=0) > 0
    with pytest.raises(tf2dist.errors.TrainingError, match="does not come to the same on parts of a batch"):
        tf2dist.fit(model, x, y, batch_size=4, verbose=0)


def test_what_validation_cannot_do_is_known_before_training(tf):
    class LargestOfEvaluation(layers.Layer):
        def call(self, inputs, training=False):
            if not training:
                self.add_loss(ops.max(inputs))
            return 1.0 * inputs

    model, (x, y) = on_two_replicas(LargestOfEvaluation(), layers.Dense(1)), data()
    with pytest.raises(ValueError, match=r"must be a mean over examples|does not come to the same"):
        tf2dist.fit(model, x, y, batch_size=4, validation_data=(x, y), verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 0


@pytest.mark.slow
def test_statistics_of_replicas_and_dropout_are_no_faults(tf):
    """Replicas have unlike statistics when they have trained; an evaluation is tried with those of the first."""
    x, y = data()

    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        inputs = keras.Input((3,))
        hidden = layers.SpectralNormalization(layers.Dense(4))(layers.Dropout(0.5)(Same()(inputs)))
        model = keras.Model(inputs, layers.Dense(1)(layers.BatchNormalization()(hidden)))
        model.compile("sgd", "mse")
    tf2dist.fit(model, x, y, batch_size=4, validation_data=(x, y), verbose=0)
    assert np.isfinite(tf2dist.evaluate(model, x, y, batch_size=3, verbose=0))


def test_predictions_that_depend_on_other_rows_are_refused_on_replicas(tf):
    x, _ = data()

    def predicted(strategy, layer, **kwargs):
        with tf2dist.make_strategy(strategy, **kwargs).scope():
            inputs = keras.Input((3,))
            model = keras.Model(inputs, layer(inputs))
        return tf2dist.predict(model, x, batch_size=4, verbose=0)

    def less_the_mean(rows):
        return rows - ops.mean(rows, axis=0, keepdims=True)

    expected = np.concatenate([part - part.mean(0) for part in (x[:4], x[4:8], x[8:])])
    np.testing.assert_allclose(predicted("one", less_the_mean), expected, atol=1e-6)
    with pytest.raises(tf2dist.errors.TrainingError, match="for a row depends on other rows of its batch"):
        predicted("mirrored", less_the_mean, replicas=2)
    double = layers.Lambda(lambda rows: 2 * rows)
    np.testing.assert_allclose(predicted("mirrored", double, replicas=2), 2 * x, rtol=1e-6)


@pytest.mark.slow
def test_a_model_of_very_many_weights_is_not_tried(tf, monkeypatch, caplog):
    from tf2dist.training import step_trial

    monkeypatch.setattr(step_trial, "_MOST_WEIGHTS", 3)
    with caplog.at_level(logging.INFO, "tf2dist"):
        trained("own state", tf2dist, tf2dist.make_strategy("mirrored", replicas=2).scope)
    assert "has too many weights or inputs to be tried" in caplog.text


@pytest.mark.parametrize(
    ("merges", "why"),
    [
        ({"largets": "max"}, "names 'largets', and its variables are largest, rows, seen, smallest"),
        ({"largest": "mean"}, 'it must say "sum", "max" or "min" for names of its variables'),
        ("max", 'it must say "sum", "max" or "min" for names of its variables'),
        ({"largest": "min", "smallest": "min"}, "does not add up: what a batch brings depends on what came before"),
        ({"largest": "max"}, "does not add up: it does not begin at zero"),
        ({"seen": "max"}, "'seen' of dtype int64: use float16 or float32 or float64 or int32"),
    ],
)
def test_what_a_metric_says_of_itself_is_tried(tf, merges, why):
    class Wrong(Extremes):
        state_merges = merges

        def __init__(self):
            super().__init__()
            dtype = "int64" if "seen" in merges else "float32"
            self.seen = self.add_weight(name="seen", initializer="zeros", dtype=dtype)

        def reset_state(self):
            super().reset_state()
            self.seen.assign(0)

    model, (x, y) = on_two_replicas(layers.Dense(1), metrics=[Wrong()]), data()
    with pytest.raises(ValueError, match=why):
        tf2dist.fit(model, x, y, batch_size=4, verbose=0)


class KeptForEver(Extremes):
    """Its largest number outlives its resets; it says how copies on replicas are read."""

    def __init__(self, aggregation="sum"):
        keras.metrics.Metric.__init__(self, name="kept")
        below = keras.initializers.Constant(-np.inf)
        self.best = self.add_variable((), below, aggregation=aggregation, name="best")

    state_merges = types.MappingProxyType({"best": "max"})
    resets = False

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.best.assign(ops.maximum(self.best, ops.max(y_pred)))

    def reset_state(self):
        if self.resets:
            self.best.assign(-np.inf)

    def result(self):
        return 1.0 * self.best


def test_a_largest_number_that_outlives_its_reset(tf):
    """Keras's own step keeps it on one device, and several replicas would begin with anything."""
    model, theirs, (x, y) = regression(KeptForEver()), regression(KeptForEver()), data()
    wanted = theirs.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["kept"]
    assert tf2dist.fit(model, x, y, batch_size=4, epochs=2, shuffle=False).history["kept"] == pytest.approx(wanted)
    model = on_two_replicas(layers.Dense(1), metrics=[KeptForEver()])
    with pytest.raises(ValueError, match="names 'best', and reset_state leaves it as it is"):
        tf2dist.fit(model, x, y, batch_size=4, verbose=0)


class MadeLate(KeptForEver):
    """Makes its variable when it sees the first batch, as some of Keras's do."""

    def __init__(self):
        keras.metrics.Metric.__init__(self, name="late")
        self.best = None

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.best is None:
            self.best = self.add_variable((), keras.initializers.Constant(-np.inf), name="best")
        super().update_state(y_true, y_pred)

    def reset_state(self):
        if self.best is not None:
            self.best.assign(-np.inf)


def test_a_variable_that_is_made_with_the_first_batch(tf):
    model, (x, y) = on_two_replicas(layers.Dense(1), metrics=[MadeLate()]), data()
    history = tf2dist.fit(model, x, y, batch_size=4, epochs=2, verbose=0).history
    assert history["late"] == pytest.approx([tf2dist.predict(model, x).max()] * 2)


@pytest.mark.parametrize("aggregation", ["sum", "mean", "only_first_replica"])
def test_copies_of_a_state_hold_what_is_read_of_them(tf, aggregation):
    class Kept(KeptForEver):
        resets = True

    model, (x, y) = on_two_replicas(layers.Dense(1), metrics=[Kept(aggregation)]), data()
    history = tf2dist.fit(model, x, y, batch_size=4, verbose=0).history
    kept = next(m for m in model.metrics if m.name == "compile_metrics").metrics[0]
    assert float(kept.result()) == pytest.approx(history["kept"][-1], rel=1e-6)


def regression(metric):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=[metric])
    return model
