"""Calls inside of `with strategy.scope():`, where programs of Keras have a whole training, are as those outside."""

import contextlib

import keras
import numpy as np
import pytest

import tf2dist
from tests.custom_step_cases import BATCH, OwnUpdate, one_layer, pair, x
from tests.jobs import run_program
from tests.models import OPTIMIZERS, classifier, data, same_weights
from tf2dist.compat.strategy_scope import outside_of_scopes, strategy_in_scope
from tf2dist.errors import UsageError


def test_they_are_the_same(strategy, tf):
    found = []
    for inside in (False, True):
        with strategy.scope():
            model = classifier(OPTIMIZERS["adam"]())
        with strategy.scope() if inside else contextlib.nullcontext():
            history = tf2dist.fit(model, *data(), batch_size=BATCH, epochs=2, validation_data=data(), verbose=0).history
            evaluated = tf2dist.evaluate(model, *data(), verbose=0)
            predicted = tf2dist.predict(model, data()[0], verbose=0)
            tf2dist.step(model)(data()[0][:BATCH], data()[1][:BATCH])
            assert tf.distribute.has_strategy() == inside
            made_after = tf.Variable(1.0)
        found.append((model, history, evaluated, predicted, type(made_after)))
    (ours, *numbers), (theirs, *expected) = found
    same_weights(ours, theirs)
    for got, wanted in zip(numbers[0].values(), expected[0].values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    for got, wanted in zip(numbers[1:3], expected[1:3], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    with strategy.scope():
        assert numbers[3] is not None
        assert expected[3] is type(tf.Variable(1.0))  # the scope is in force again


def test_what_is_checked_outside_is_checked_inside(tf):
    """A log that is computed from what a metric has come to is refused where replicas each see a part."""

    class Computed(OwnUpdate):
        def train_step(self, data):
            logs = super().train_step(data)
            self.tracker.update_state(logs["loss"])
            return logs | {"computed": 1.0 + self.tracker.result()}

    strategy = tf2dist.make_strategy("mirrored", replicas=2)
    for scope in (contextlib.nullcontext, strategy.scope):
        with strategy.scope():
            model = one_layer(Computed)()
            model.tracker = keras.metrics.Mean(name="tracked")
        with scope(), pytest.raises(UsageError, match="computes log computed from what a metric has come to"):
            tf2dist.fit(model, x, pair[1], batch_size=BATCH, verbose=0)


def test_a_model_that_was_made_outside_has_the_strategy_of_the_scope(tf):
    strategy = tf2dist.make_strategy("mirrored", replicas=2)
    model = classifier(OPTIMIZERS["sgd"]())
    with strategy.scope():
        tf2dist.fit(model, *data(), batch_size=BATCH, verbose=0)
    assert model.distribute_strategy is strategy


def test_the_code_of_a_replica_stays_in_it(tf):
    strategy = tf2dist.make_strategy("mirrored", replicas=2)

    @tf.function(autograph=False)
    def of_replica():
        with outside_of_scopes():
            assert not tf.distribute.in_cross_replica_context()
            assert strategy_in_scope() is strategy
            return tf.distribute.get_replica_context().all_reduce("sum", 1.0)

    assert float(strategy.experimental_local_results(strategy.run(of_replica))[0]) == 2.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_synchronous_updates(tmp_path):
    """By the weights of Keras on one device."""
    run_program(["--ps=1", "--workers=2"], "inside_of_scope", tmp_path / "weights.npz")
    model = classifier(OPTIMIZERS["adam"]())
    model.fit(*data(), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    with np.load(tmp_path / "weights.npz") as found:
        for got, wanted in zip(found.values(), model.get_weights(), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


def test_keras_needs_the_scope_left(tf):
    """Fails when a scope that is around everything does not change what a replica alone finds; see `strategy_scope`."""
    strategy = tf2dist.make_strategy("mirrored", replicas=2)
    with strategy.scope():
        variable = keras.Variable(1.0)
        with pytest.raises(ValueError, match="not available outside"):
            _ = variable.value.handle
