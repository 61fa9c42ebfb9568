"""A compiled step's slices add up to the global batch; its metric sums add up over steps."""

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import sampled
from tests.models import FEATURES, OPTIMIZERS, classifier, data


@pytest.fixture
def step(tf):
    from tf2dist.compat.model import build_from_specs
    from tf2dist.execution.keras_train_step import KerasTrainStep

    model = classifier(OPTIMIZERS["sgd"]())
    x, _ = data()
    build_from_specs(model, (keras.KerasTensor((None, x.shape[1]), "float32"), keras.KerasTensor((None,), "int64")))
    model.optimizer.build(model.trainable_variables)
    return KerasTrainStep(model)


def gradients(tf, step, batch, weight):
    found, sums = tf.function(lambda: step.gradients(batch, weight), autograph=False)()
    return [g.numpy() for g in found], [s.numpy() for s in sums]


@pytest.mark.parametrize("cut", sampled([1, 40, 100], [40], [1, 100]))
def test_uneven_slices_add_up_to_the_batch(tf, step, cut):
    x, y = data()
    whole, sums = gradients(tf, step, (x, y), None)
    slices = [(x[:cut], y[:cut]), (x[cut:], y[cut:])]
    parts = [gradients(tf, step, s, tf.constant(len(s[0]) / len(x), tf.float32)) for s in slices]
    for ours, first, second in zip(whole, parts[0][0], parts[1][0], strict=True):
        np.testing.assert_allclose(first + second, ours, rtol=1e-4, atol=1e-6)
    together = step.add_sums(parts[0][1], parts[1][1])
    assert step.logs(together) == pytest.approx(step.logs(sums), rel=1e-5)


def test_an_empty_slice_counts_nothing(tf, step):
    x, y = data()
    found, sums = gradients(tf, step, (x[:1], y[:1]), tf.constant(0.0))
    assert all(not g.any() for g in found)
    assert all(not np.any(s) for s in sums)


def test_logs_are_those_of_keras(tf, step):
    x, y = data()
    sums = [s.numpy() for s in tf.function(lambda: step.evaluate((x, y)), autograph=False)()]
    theirs = step.model.evaluate(x, y, batch_size=len(x), verbose=0, return_dict=True)
    assert step.logs(sums) == pytest.approx(theirs, rel=1e-5)


@pytest.mark.slow
def test_losses_of_outputs_are_those_of_keras_in_slices_of_known_size(tf):
    """Keras counts rows in them where it knows how many there are, and the two slices of a batch differ in that."""
    x, y = np.random.default_rng(0).normal(size=(2, 16, 3)).astype(np.float32)

    def losses(fit, strategy):
        with strategy.scope():
            i, zeros = keras.Input((3,)), {"kernel_initializer": "zeros"}
            outputs = {n: keras.layers.Dense(3, name=n, **zeros)(i) for n in "ab"}
            model = keras.Model(i, outputs)
            model.compile(keras.optimizers.SGD(0.0), "mse")
        batches = tf.data.Dataset.from_tensor_slices((x, {"a": y, "b": 2 * y})).batch(5, drop_remainder=True)
        return fit(model, batches).history

    theirs = losses(lambda model, batches: model.fit(batches, verbose=0), tf2dist.make_strategy("one"))
    ours = losses(tf2dist.fit, tf2dist.make_strategy("mirrored", replicas=2))
    assert {"a_loss", "b_loss"} < set(theirs)
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-5, err_msg=name)


def test_zero_sums_are_those_of_no_steps(step):
    assert np.isnan(step.logs([np.asarray(z) for z in step.zero_sums()])["loss"])


def joined(tf, step, slices):
    """Gradients and sums of slices that exchange nothing while they compute, in one graph."""

    def compute():
        parts = [step.fractions(batch, tf.constant(weight, tf.float32)) for batch, weight in slices]
        return step.join(parts, [[False] * len(fraction.gradients) for fraction in parts[0][0]])

    found, sums = tf.function(compute, autograph=False)()
    return [g.numpy() for g in found], [s.numpy() for s in sums]


@pytest.mark.parametrize("cut", sampled([1, 40], [1], [40]))
def test_fractions_of_slices_join(tf, step, cut):
    """Also of means over sample weights, zeros among them, and where a slice is missing."""
    x, y = data()
    weights = np.linspace(0, 1, len(x), dtype=np.float32) * (np.arange(len(x)) % 3)
    for reduction in ("sum_over_batch_size", "mean_with_sample_weight", "sum"):
        step.model.loss.reduction = reduction
        whole, sums = gradients(tf, step, (x, y, weights), None)
        rows = [(x[:cut], y[:cut], weights[:cut]), (x[cut:], y[cut:], weights[cut:])]
        slices = [(s, len(s[0]) / len(x)) for s in rows]
        found, together = joined(tf, step, slices)
        for ours, expected in zip(found, whole, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)
        assert step.logs(together) == pytest.approx(step.logs(sums), rel=1e-5)
    step.model.loss.reduction = "mean_with_sample_weight"
    alone, _ = joined(tf, step, slices[1:])
    expected, _ = gradients(tf, step, rows[1], None)
    for ours, theirs in zip(alone, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_whole_batch_on_one_of_several_devices(tf):
    """A worker with two GPUs evaluates a shard on one of them: Keras would halve each mean."""
    from tf2dist.compat.model import build_from_specs
    from tf2dist.execution.keras_train_step import KerasTrainStep

    x, y = data()
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = classifier(OPTIMIZERS["sgd"]())
        model.layers[-1].activity_regularizer = keras.regularizers.L2(0.1)
        build_from_specs(model, (keras.KerasTensor((None, x.shape[1]), "float32"), keras.KerasTensor((None,), "int64")))
        step = KerasTrainStep(model)
        logs = step.logs([s.numpy() for s in tf.function(lambda: step.evaluate((x, y)), autograph=False)()])
    alone = classifier(OPTIMIZERS["sgd"]())
    alone.layers[-1].activity_regularizer = keras.regularizers.L2(0.1)
    alone.set_weights(model.get_weights())
    assert logs == pytest.approx(alone.evaluate(x, y, batch_size=len(x), verbose=0, return_dict=True), rel=1e-5)


@pytest.mark.parametrize("rank", [0, 1])
def test_metrics_of_peers_add_up_to_those_of_the_job(tf, step, monkeypatch, rank):
    """What is read of a metric is the sum over the peers: the first one has all of it, the others nothing."""
    from tf2dist.runtime import collectives

    x, y = data()
    sums = [s.numpy() for s in tf.function(lambda: step.evaluate((x, y)), autograph=False)()]
    monkeypatch.setattr(collectives, "peers", lambda strategy: (2, rank))
    step.set_metrics(sums, tf.distribute.get_strategy())
    values = [float(np.sum(variable)) for metric in step.model.metrics for variable in metric.variables]
    assert len(values) > 2
    assert all(values) if rank == 0 else not any(values)


def test_every_part_of_a_loss_is_scaled(tf, step):
    """Also a mean over sample weights, which is divided when all slices are together."""
    x, y = data()
    weights = np.linspace(0, 1, len(x), dtype=np.float32)
    step.model.loss.reduction = "mean_with_sample_weight"
    rows = [(x[:40], y[:40], weights[:40]), (x[40:], y[40:], weights[40:])]
    slices = [(s, len(s[0]) / len(x)) for s in rows]
    plain, _ = joined(tf, step, slices)
    step.model.optimizer.loss_scale_factor = 64.0
    scaled, _ = joined(tf, step, slices)
    for ours, theirs in zip(scaled, plain, strict=True):
        assert np.any(theirs)
        np.testing.assert_allclose(ours, 64 * theirs, rtol=1e-5, atol=1e-6)


def test_parts_of_a_loss_keep_the_rows_that_they_look_up(tf):
    """Two parts that look up equally many rows of a table need not look up the same ones."""
    from tf2dist.execution.loss_fractions import Fraction, quotients

    def part(rows, denominator):
        gradient = tf.IndexedSlices(tf.constant([[3.0], [5.0]]), tf.constant(rows), tf.constant([4, 1]))
        return Fraction(tf.constant(denominator), [tf.ones([])], [gradient])

    for rows, expected, lookups in (([2, 0], [5.5, 5.0, 1.5, 0.0], 4), ([0, 1], [4.5, 7.5, 0.0, 0.0], 2)):
        parts = [part([0, 1], 1.0), part(rows, 2.0)]
        _, (gradient,) = quotients(parts, [p.denominator for p in parts])
        assert np.ravel(tf.convert_to_tensor(gradient)).tolist() == expected
        assert gradient.indices.shape == [lookups]  # the same rows stay looked up once


class OwnMetrics(keras.Sequential):
    """Says itself how its metrics are updated, and logs them by their names."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, y, y_pred, sample_weight)


def test_metrics_that_a_model_updates_itself_count_each_row_once(tf):
    """Of 9 rows in batches of 8 the last batch leaves one of two replicas nothing of its own."""
    x, y = (a[:9] for a in data())
    plain = classifier(OPTIMIZERS["sgd"]())
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = OwnMetrics([keras.Input((FEATURES,)), *classifier(OPTIMIZERS["sgd"]()).layers])
        model.compile("sgd", plain.loss, metrics=["accuracy"])
    expected = plain.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    found = tf2dist.evaluate(model, x, y, batch_size=8, verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=1e-5)
