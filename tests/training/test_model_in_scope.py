"""A model that was made outside of the scope of the job's strategy is moved into it, with its state."""

import functools
import logging
import pickle

import keras
import numpy as np
import pytest

import tf2dist
from tests import outside_of_scope
from tests.conftest import SINGLE_PROCESS_SLOWLY, sampled, strategies
from tests.jobs import run_program
from tests.models import OPTIMIZERS, classifier, data
from tf2dist.runtime import session

strategy = strategies(SINGLE_PROCESS_SLOWLY[:2])
LAYOUTS = {"ps": ("--ps=2", "--workers=1"), "multiworker": ("--workers=2",)}


@pytest.fixture
def joined(monkeypatch, strategy):
    """The strategy of the job that this process has joined."""
    job = session.Session()
    job.strategy = strategy
    monkeypatch.setattr(session, "_current", job)
    return strategy


@functools.cache
def expected(name):
    return outside_of_scope.trained(name, keras.Model)


@pytest.mark.parametrize(
    "name",
    sampled(outside_of_scope.CASES, (), ("averages", "statistics", "weight decay", "loss scale", "two optimizers")),
)
def test_trains_on_as_on_one_device(joined, name, caplog):
    with caplog.at_level(logging.INFO, "tf2dist"):
        outside_of_scope.assert_same(outside_of_scope.trained(name, tf2dist), expected(name))
    assert caplog.text.count(f"was made outside of the scope of {type(joined).__name__}: ") == 1


@pytest.mark.parametrize("name", sampled(("weight decay", "averages"), (), ("weight decay",)))
def test_trains_as_on_one_device(joined, name):
    """Of a model that was not trained before; the optimizer has not decided yet which weights decay."""
    theirs = outside_of_scope.trained(name, keras.Model, before=False)
    outside_of_scope.assert_same(outside_of_scope.trained(name, tf2dist, before=False), theirs)


@pytest.mark.parametrize("layout", sampled(LAYOUTS, (), ["ps"]))
def test_trains_on_in_a_job(tmp_path, layout):
    run_program(LAYOUTS[layout], "outside_of_scope", layout, tmp_path / "out")
    for name, found in pickle.loads((tmp_path / "out").read_bytes()).items():
        outside_of_scope.assert_same(found, expected(name))


@pytest.mark.slow
def test_a_model_that_is_not_built(joined):
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = tf2dist.fit(model, *data(), epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert model.distribute_strategy is joined


def test_xla_that_keras_has_chosen_for_a_gpu(tf, monkeypatch):
    """Outside of every scope it chooses XLA where there is a GPU, and some strategies' variables XLA cannot read."""
    job = session.Session()
    job.strategy = tf2dist.make_strategy("central", replicas=2)
    monkeypatch.setattr(session, "_current", job)
    devices, gpu = tf.config.list_physical_devices("CPU"), tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    with monkeypatch.context() as patch:
        patch.setattr(tf.config, "list_physical_devices", lambda kind=None: [gpu] if kind == "GPU" else [*devices, gpu])
        model = classifier(OPTIMIZERS["sgd"]())
        assert model.jit_compile is True
        tf2dist.evaluate(model, *data(), verbose=0)
        assert model.jit_compile is False
    # Without a GPU the user has asked for it.
    model = classifier(OPTIMIZERS["sgd"]())
    model.compile(model.optimizer, model.loss, jit_compile=True)
    with pytest.raises(ValueError, match="compiled with jit_compile=True"):
        tf2dist.evaluate(model, *data(), verbose=0)


def test_a_model_that_is_not_compiled_predicts(joined):
    model, (x, _) = classifier(OPTIMIZERS["sgd"]()), data()
    model = keras.Model(model.inputs, model.outputs)
    before = model(x).numpy()
    np.testing.assert_allclose(tf2dist.predict(model, x), before, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_saves_and_exports_as_any_other(tf, joined, tmp_path):
    model, (x, y) = classifier(OPTIMIZERS["adam"]()), data()
    model.predict(x, verbose=0)  # a trace of the variables that it had
    tf2dist.fit(model, x, y, verbose=0)
    after = tf2dist.predict(model, x)
    model.save(tmp_path / "x.keras")
    model.export(tmp_path / "x", verbose=False)
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "x.keras")(x), after, rtol=1e-5, atol=1e-6)
    exported = tf.saved_model.load(str(tmp_path / "x"))
    np.testing.assert_allclose(exported.serve(x), after, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict(x, verbose=0), after, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_layers_of_a_model_outside_and_an_optimizer_outside(strategy):
    outside = classifier(OPTIMIZERS["momentum"]())
    with strategy.scope():
        model = keras.Sequential([keras.Input((12,)), *outside.layers])
        model.compile(outside.optimizer, outside.loss)
    history = tf2dist.fit(model, *data(), epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.slow
def test_fit_inside_of_the_scope_of_a_model_outside(strategy):
    model = classifier(OPTIMIZERS["momentum"]())
    with strategy.scope():
        tf2dist.fit(model, *data(), verbose=0)
    assert model.distribute_strategy is strategy


def test_what_only_tensorflow_knows_is_refused(tf, joined):
    model = classifier(OPTIMIZERS["sgd"]())
    model.layers[0].offset = [tf.Variable(1.0)]
    with pytest.raises(ValueError, match=rf"offset of layer {model.layers[0].name} cannot be moved there"):
        tf2dist.fit(model, *data())


def test_the_model_of_another_strategy_is_refused(joined):
    with tf2dist.make_strategy("mirrored", replicas=3).scope():
        model = classifier(OPTIMIZERS["sgd"]())
    with pytest.raises(ValueError, match=r"in that of another one \(MirroredStrategy\)"):
        tf2dist.fit(model, *data())


def test_metrics_that_compile_was_given_are_moved_before_they_are_used(tf):
    """Those of a model that was not trained yet; a `train_step` of its own may update them in place."""
    from tf2dist.training.model_in_scope import move_into_scope

    model, strategy = classifier(OPTIMIZERS["sgd"]()), tf2dist.make_strategy("mirrored", replicas=2)
    given = {"metrics": [keras.metrics.MeanSquaredError()], "weighted_metrics": [[keras.metrics.Mean()], "accuracy"]}
    model.compile("sgd", "mse", **given)
    with strategy.scope():
        move_into_scope(model)
    states = [v for metric in (given["metrics"][0], given["weighted_metrics"][0][0]) for v in metric.variables]
    assert len(states) == 4
    assert all(strategy.extended.variable_created_in_scope(v.value) for v in states)
