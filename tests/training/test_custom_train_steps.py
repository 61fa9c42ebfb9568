"""Models with steps of their own, as published on keras.io, against Keras's own `fit` on one device."""

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import sampled
from tests.custom_step_cases import (
    BATCH,
    CASES,
    InACondition,
    MaskedByHand,
    Mixed,
    OverlapFunction,
    OverlapLoss,
    OwnUpdate,
    Root,
    SumOverGlobalBatch,
    Unseen,
    batches,
    compiled,
    dense,
    one_layer,
    pair,
    sgd,
    x,
)
from tests.models import ROWS
from tf2dist.errors import TrainingError, UsageError

QUICK = (("average loss", 2),)
LIKE_OTHERS = [
    (name, 2)
    for name in (
        "sum",
        "loss in a layer",
        "gradient by inputs",
        "other names",
        "summed",
        "siamese",
        "several outputs",
    )
]
LIKE_OTHERS += [(n, 1) for n in CASES if n not in ("functions", "dcgan")]
TRIED = [(n, r) for n in CASES for r in (1, 2)]
# Metrics are sums there, and the rest is as on mirrored.
CENTRAL = ("vae", "dcgan", "other names", "several outputs")


@pytest.mark.parametrize(
    ("name", "replicas"), sampled(TRIED, QUICK, [t for t in TRIED if t not in QUICK and t not in LIKE_OTHERS])
)
def test_equals_keras(tf, name, replicas):
    check_equals_keras(tf, name, "mirrored" if replicas > 1 else "one", replicas)


@pytest.mark.parametrize("name", sampled(CASES, slow=CENTRAL))
def test_equals_keras_with_central_variables(tf, name):
    check_equals_keras(tf, name, "central", 2)


def check_equals_keras(tf, name, strategy, replicas):
    """Uneven slices (the last batch has 7 rows), and a last batch with fewer rows than replicas."""
    make, rows = CASES[name]
    kinds = [batches(rows, BATCH)] if replicas == 1 else [batches(rows, BATCH), batches(rows, ROWS - 1)]
    for dataset in kinds:
        theirs = make()
        expected = theirs.fit(dataset, epochs=2, verbose=0).history
        with tf2dist.make_strategy(strategy, replicas=replicas if replicas > 1 else None).scope():
            model = make()
        history = tf2dist.fit(model, dataset, epochs=2, steps_per_execution=3).history
        for a, b in zip(model.trainable_variables, theirs.trainable_variables, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
        assert history.keys() == expected.keys()
        for log, values in expected.items():
            np.testing.assert_allclose(history[log], values, rtol=5e-4, atol=1e-5, err_msg=log)
    if name == "siamese":
        expected = theirs.evaluate(dataset, verbose=0)
        assert tf2dist.evaluate(model, dataset, return_dict=True)["loss"] == pytest.approx(expected, rel=1e-4)


def test_what_cannot_be_scaled_is_refused(tf):
    rows = CASES["siamese"][1]
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = compiled(Mixed, sgd)()
    with pytest.raises(TrainingError, match="adds a sum over examples to a mean"):
        tf2dist.fit(model, batches(rows, BATCH))
    model = compiled(Mixed, sgd)()
    assert len(tf2dist.fit(model, batches(rows, BATCH)).history["loss"]) == 1


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (OverlapFunction, "neither a sum nor a mean"),
        (Root, "neither a sum nor a mean"),
        (MaskedByHand, "neither a sum nor a mean"),
        (Unseen, "what GradientTape.gradient has not returned"),
    ],
)
def test_what_parts_of_a_batch_do_not_show_is_refused(tf, kind, why):
    rows = batches((x, pair[1]), BATCH)
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = one_layer(kind)()
    before = [w.numpy() for w in model.weights]
    with pytest.raises(TrainingError, match=why):
        tf2dist.fit(model, rows)
    for a, b in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(tf2dist.fit(one_layer(kind)(), rows).history["loss"]) == 1


def squares(y, y_pred):
    return keras.ops.square(y - y_pred)


def n(rows):
    return keras.ops.cast(keras.ops.shape(rows)[0], "float32")


def masked_mean(tf, y, y_pred):
    return tf.reduce_mean(tf.boolean_mask(squares(y, y_pred), y > 0.3))


def loss(function):
    """A model whose loss `function(tf, y, y_pred)` computes."""

    class OwnLoss(OwnUpdate):
        def loss_of(self, x, y, y_pred):
            import tensorflow as tf

            return function(tf, y, y_pred)

    return one_layer(OwnLoss, lambda: keras.optimizers.SGD(0.02))


def changing(function):
    """A model that calls `function(model, x, y)` after its update, for logs."""

    class Changing(OwnUpdate):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.kept = self.add_weight(shape=(), initializer="ones", trainable=False, name="kept")
            self.sum = keras.metrics.Sum(name="sum")

        def change(self, x, y, gradients):
            super().change(x, y, gradients)
            return function(self, x, y)

    return one_layer(Changing)


def own_mean(model, x, y):
    return keras.ops.mean(squares(y, model(x)))


def keep(model, x, y):
    model.kept.assign(0.9 * model.kept + own_mean(model, x, y))
    return {}


UNEQUAL = {  # on parts of a batch, with what the refusal names; nothing where numbers may be equal instead
    "own sum by n": (loss(lambda tf, y, p: keras.losses.MeanSquaredError(reduction="sum")(y, p) / n(y)), ""),
    "sum times a reciprocal": (loss(lambda tf, y, p: tf.reduce_sum(squares(y, p)) * tf.math.reciprocal(n(y))), ""),
    "mean times n": (loss(lambda tf, y, p: tf.reduce_mean(squares(y, p)) * n(y)), ""),
    "sum of products": (loss(lambda tf, y, p: tf.einsum("ij,ij->", y - p, y - p)), ""),
    "maximum": (loss(lambda tf, y, p: tf.reduce_max(squares(y, p))), ""),
    "mean of some": (loss(masked_mean), ""),
    "between examples": (loss(lambda tf, y, p: tf.reduce_mean(tf.nn.softmax(tf.matmul(p, y, transpose_b=True)))), ""),
    "running mean": (changing(keep), "kept"),
    "sum of means": (changing(lambda *batch: batch[0].sum.update_state(own_mean(*batch)) or {}), "sum"),
    "root of a mean": (changing(lambda *batch: {"root": keras.ops.sqrt(own_mean(*batch))}), "log root"),
}
QUICK_UNEQUAL = (("mirrored", "sum of products"), ("central", "sum of means"))


def everything(model):
    """Each copy of each variable of a model and its optimizer, to the last bit."""
    strategy = model.distribute_strategy
    variables = {id(v): v for v in [*model.variables, *model.optimizer.variables]}.values()
    return [part.numpy() for v in variables for part in strategy.experimental_local_results(v.value)]


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        pytest.param(strategy, c, marks=() if (strategy, c) in QUICK_UNEQUAL else pytest.mark.slow)
        for strategy in ("mirrored", "central")
        for c in UNEQUAL
    ],
)
def test_what_parts_of_a_batch_do_not_come_to_is_refused_or_equal(tf, strategy, name):
    make, why = UNEQUAL[name]
    rows = batches((x, pair[1]), BATCH)
    theirs = make()
    expected = theirs.fit(rows, verbose=0).history
    with tf2dist.make_strategy(strategy, replicas=2).scope():
        model = make()
    before, refused, history = [w.numpy() for w in model.weights], "", {}
    try:
        history = tf2dist.fit(model, rows).history
    except TrainingError as error:
        refused = str(error)
    if refused:
        assert "on parts of a batch" in refused
        assert why in refused
        for a, b in zip(model.weights, before, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
        return
    assert not why
    np.testing.assert_allclose(model.get_weights()[0], theirs.get_weights()[0], rtol=2e-4, atol=2e-5)
    assert history["loss"] == pytest.approx(expected["loss"], rel=1e-3)


@pytest.mark.slow
def test_sums_over_batches_of_one_size(tf):
    """What a graph shows of a batch is its size, too; sums are scaled all the same."""
    rows = tf.data.Dataset.from_tensor_slices((x, pair[1])).batch(BATCH, drop_remainder=True)
    make = loss(lambda tf, y, p: 0.05 * tf.reduce_sum(squares(y, p)))
    theirs = make()
    theirs.fit(rows, verbose=0)
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model, other = make(), loss(lambda tf, y, p: tf.reduce_sum(squares(y, p)) / y.shape[0])()
    tf2dist.fit(model, rows)
    np.testing.assert_allclose(model.get_weights()[0], theirs.get_weights()[0], rtol=2e-4, atol=2e-5)
    with pytest.raises(TrainingError, match="does not take batches of any size"):
        tf2dist.fit(other, rows)


class OwnTracker(OwnUpdate):
    """As the guide on what happens in `fit`: its metrics are not those that Keras's own `test_step` updates."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker, self.unlisted = keras.metrics.Mean(name="loss"), keras.metrics.Mean(name="unlisted")

    @property
    def metrics(self):
        return [self.tracker]

    def change(self, x, y, gradients):
        self.tracker.update_state(own_mean(self, x, y))
        self.unlisted.update_state(squares(y, self(x)))
        super().change(x, y, gradients)
        return {"loss": self.tracker.result(), "unlisted": self.unlisted.result()}


@pytest.mark.slow
def test_metrics_that_a_model_does_not_list_are_those_of_the_whole_batch(tf):
    """Also where a last batch of one row leaves a replica without any."""
    rows = batches((x[: BATCH + 1], pair[1][: BATCH + 1]), BATCH)
    theirs = one_layer(OwnTracker)()
    expected = theirs.fit(rows, validation_data=rows, epochs=2, verbose=0).history
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = one_layer(OwnTracker)()
    history = tf2dist.fit(model, rows, validation_data=rows, epochs=2).history
    assert history.keys() == expected.keys()
    for log, values in expected.items():
        assert history[log] == pytest.approx(values, rel=1e-4), log


@pytest.mark.slow
def test_updates_in_a_condition_are_refused(tf):
    rows = batches((x, pair[1]), BATCH)
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = one_layer(InACondition)()
    with pytest.raises(TrainingError, match="applies gradients in a condition"):
        tf2dist.fit(model, rows)
    assert len(tf2dist.fit(one_layer(InACondition)(), rows).history["loss"]) == 1


class RootOfTest(OwnUpdate):
    def test_step(self, data):
        x, y = data
        return {"root": keras.ops.sqrt(keras.ops.mean(squares(y, self(x))))}


@pytest.mark.slow
def test_a_test_step_is_tried_before_training(tf):
    rows = batches((x, pair[1]), BATCH)
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = one_layer(RootOfTest)()
    before = model.get_weights()[0]
    with pytest.raises(TrainingError, match=r"test_step of RootOfTest .* log root"):
        tf2dist.fit(model, rows, validation_data=rows)
    np.testing.assert_array_equal(model.get_weights()[0], before)


class Random(OwnUpdate):
    """Noise in the gradients, statistics, and seeds that go on."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.noise, self.seen = keras.random.SeedGenerator(3), keras.metrics.Mean(name="seen")
        self.average = self.add_weight(shape=(), initializer="ones", trainable=False, name="average")

    def change(self, x, y, gradients):
        self.seen.update_state(y)
        self.average.assign(0.9 * self.average)
        noise = [keras.random.normal(g.shape, seed=self.noise) for g in gradients]
        return super().change(x, y, [g + 0.1 * more for g, more in zip(gradients, noise, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("refused", [False, True])
def test_a_trial_leaves_nothing_behind(tf, refused):
    from tf2dist.input.make_adapter import make_finite_adapter
    from tf2dist.training import step_trial
    from tf2dist.training.prepared_model import prepare

    class Deviating(Random):
        def change(self, x, y, gradients):
            self.average.assign(keras.ops.mean(x) ** 2)
            self.seen.update_state(y)
            return super(Random, self).change(x, y, gradients)

    def make():
        inputs = keras.Input((12,))
        hidden = keras.layers.Dropout(0.0 if refused else 0.2)(keras.layers.BatchNormalization()(inputs))
        model = (Deviating if refused else Random)(inputs, dense(1, 9)(hidden))
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(use_ema=True)), "mse")
        return model

    data = make_finite_adapter(batches((x, pair[1]), BATCH))
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = make()
    kept = []
    trial = step_trial.check

    def check(*args):
        kept.append(everything(model))
        trial(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_trial, "check", check)
        if refused:
            with pytest.raises(TrainingError, match="average"):
                prepare(model).train_step(data)
        else:
            prepare(model).train_step(data)
    after = everything(model)
    assert len(kept) == 1
    assert len(kept[0]) == len(after) > 20
    for a, b in zip(kept[0], after, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [layer.synchronized for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)] == [
        False
    ]


class Choosy(OwnUpdate):
    """Takes rows only that have large numbers in them; writes a variable that Keras does not know."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        import tensorflow as tf

        self.least, self.runs = tf.Variable(5.0), tf.Variable(0)

    def loss_of(self, x, y, y_pred):
        import tensorflow as tf

        self.runs.assign_add(1)
        with tf.control_dependencies([tf.debugging.assert_greater(tf.reduce_max(x), self.least)]):
            return super().loss_of(x, y, tf.identity(y_pred))


@pytest.mark.slow
def test_rows_that_make_no_sense_are_found_by_each_process_alone(tf):
    """As several processes try them before they make an update together."""
    from tf2dist.execution.custom_train_step import CustomTrainStep
    from tf2dist.training import step_trial

    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = one_layer(Choosy)()
        step = CustomTrainStep(model)
        specs = [tf.TensorSpec([None, 12]), tf.TensorSpec([None, 1])]
        step.build("train_step", tuple(keras.KerasTensor(s.shape, s.dtype.name) for s in specs))
    before = everything(model)
    trial = step_trial._Trial(step, "train_step", tuple(specs))
    assert not trial._runs_in_all_peers()
    model.least.assign(0.0)
    assert trial._runs_in_all_peers()
    for a, b in zip(everything(model), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.runs.numpy() == 0


def test_losses_between_examples_are_refused_where_rows_stay_apart(tf, monkeypatch):
    from tf2dist.compat import global_batch_loss

    monkeypatch.setattr(global_batch_loss, "exchange_rows", lambda strategy: False)  # as MultiWorkerMirroredStrategy
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = one_layer(OverlapLoss)()
    with pytest.raises(TrainingError, match="computes Dice, which is no mean"):
        tf2dist.fit(model, batches((x, pair[1]), BATCH))


@pytest.mark.slow
def test_average_loss_by_the_global_batch(tf):
    """Of full batches: for others the one who gives the size is wrong by it."""
    rows = batches((x, pair[1]), BATCH).take(3)
    theirs = one_layer(SumOverGlobalBatch)()
    expected = theirs.fit(rows, verbose=0).history
    with tf2dist.make_strategy("mirrored", replicas=3).scope():
        model = one_layer(SumOverGlobalBatch)()
    assert tf2dist.fit(model, rows).history["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    np.testing.assert_allclose(model.get_weights()[0], theirs.get_weights()[0], rtol=1e-5, atol=1e-6)


def test_what_is_replaced_in_keras_comes_back(tf):
    """Keras beside us keeps its own functions; what this looks at is what there is to replace."""
    from tf2dist.compat import global_batch_custom_step

    patches = global_batch_custom_step.patches
    before = [{name: getattr(p._owner, name) for name in p._replacements} for p in patches]
    with global_batch_custom_step.on_slice(tf.constant(0.5)):
        inside = [{name: getattr(p._owner, name) for name in p._replacements} for p in patches]
    assert all(a[name] is not b[name] for a, b in zip(before, inside, strict=True) for name in a)
    assert before == [{name: getattr(p._owner, name) for name in p._replacements} for p in patches]


class Largest(keras.metrics.Metric):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y)))

    def result(self):
        return self.value


class MeasuresLargest(OwnUpdate):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.largest = Largest(name="largest")

    def change(self, x, y, gradients):
        self.largest.update_state(y)
        return super().change(x, y, gradients)


class RootOfMetric(OwnTracker):
    def change(self, x, y, gradients):
        return super().change(x, y, gradients) | {"root": keras.ops.sqrt(self.tracker.result())}


class TwiceAccuracy(keras.Model):
    """Its accuracy of rows of zeros is 1, whatever it has come to in the sum and the number alike."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)

    def compute_metrics(self, *args, **kwargs):
        logs = super().compute_metrics(*args, **kwargs)
        return logs | {"twice": 2 * logs["accuracy"]}


@pytest.mark.parametrize(
    "where", [("central", 1), *(pytest.param(where, marks=pytest.mark.slow) for where in (("mirrored", 2), ("one", 1)))]
)
def test_a_log_that_is_computed_from_what_a_metric_has_come_to(tf, where):
    """Is refused before anything runs where a step does not see all of the metric, in training and in evaluation."""
    strategy, replicas = where
    with tf2dist.make_strategy(strategy, **({"replicas": replicas} if strategy != "one" else {})).scope():
        model = TwiceAccuracy()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    y = np.arange(ROWS) % 3
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    if strategy == "one":
        history = tf2dist.fit(model, x, y, validation_data=(x, y), **options).history
        for prefix in ("", "val_"):
            assert history[f"{prefix}twice"] == pytest.approx([2 * history[f"{prefix}accuracy"][0]])
        return
    for call, step in ((tf2dist.fit, "train_step"), (tf2dist.evaluate, "test_step")):
        with pytest.raises(ValueError, match=f"^{step} of TwiceAccuracy computes log twice from what a metric"):
            call(model, x, y, **({} if call is tf2dist.evaluate else options))


class Restarting(OwnTracker):
    def change(self, x, y, gradients):
        self.tracker.reset_state()
        return super().change(x, y, gradients)


class AsInTheGuide(OwnUpdate):
    """With a number more than its metrics, and `tf.function`s."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        import tensorflow as tf

        self.measure = tf.function(self.measure)

    def measure(self, x, y):
        for metric in self.metrics:
            metric.update_state(y, self(x)) if metric.name != "loss" else metric.update_state(own_mean(self, x, y))

    def change(self, x, y, gradients):
        super().change(x, y, gradients)
        self.measure(x, y)
        return {m.name: m.result() for m in self.metrics} | {"norm": keras.ops.norm(gradients[0])}


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_metrics_beside_other_logs(tf, replicas):
    theirs, rows = one_layer(AsInTheGuide, metrics=["mae"])(), batches((x, pair[1]))
    expected = theirs.fit(rows, epochs=2, verbose=0).history
    with tf2dist.make_strategy("central", replicas=replicas).scope():
        model = one_layer(AsInTheGuide, metrics=["mae"])()
    history = tf2dist.fit(model, rows, epochs=2).history
    assert set(history) == set(expected) == {"loss", "mae", "norm"}
    for log, values in expected.items():
        assert history[log] == pytest.approx(values, rel=1e-4), log


class Each(OwnUpdate):
    def change(self, x, y, gradients):
        return super().change(x, y, gradients) | {"each": keras.ops.max(x, axis=1)}


@pytest.mark.parametrize(
    ("kind", "replicas", "error", "why"),
    [
        (MeasuresLargest, 2, ValueError, r"metric largest \(Largest\) does not add up: what a batch brings depends"),
        # Also on one replica, where it cannot be told by its slices.
        (RootOfMetric, 1, ValueError, "computes log root from what a metric has come to"),
        (Restarting, 1, ValueError, "does not add up"),
        (Each, 2, TrainingError, r"train_step of Each logs each with shape \(None,\)"),
    ],
)
def test_what_cannot_be_had_from_metrics_of_single_steps_is_refused(tf, kind, replicas, error, why):
    with tf2dist.make_strategy("central", replicas=replicas).scope():
        model = one_layer(kind)()
    with pytest.raises(error, match=why):
        tf2dist.fit(model, batches((x, pair[1])))


class ReturnsNothing(OwnUpdate):
    def train_step(self, data):
        super().train_step(data)


@pytest.mark.parametrize("strategy", sampled(("one", "mirrored", "central"), ("one",), ("mirrored", "central")))
def test_a_step_that_returns_no_dict(tf, strategy):
    with tf2dist.make_strategy(strategy, **({"replicas": 2} if strategy != "one" else {})).scope():
        model = one_layer(ReturnsNothing)()
    before = [w.numpy() for w in model.weights]
    with pytest.raises(UsageError, match=r"^train_step of ReturnsNothing must return a dict, found None$"):
        tf2dist.fit(model, batches((x, pair[1])))
    for a, b in zip(model.weights, before, strict=False):  # the step itself may have made more
        np.testing.assert_array_equal(a.numpy(), b)


class LossOfEach(OwnUpdate):
    def change(self, x, y, gradients):
        return super().change(x, y, gradients) | {"loss": keras.ops.mean(x, axis=1)}


@pytest.mark.parametrize("strategy", ["one", pytest.param("mirrored", marks=pytest.mark.slow)])
def test_a_loss_that_is_no_scalar_is_refused(tf, strategy):
    with tf2dist.make_strategy(strategy, **({"replicas": 2} if strategy == "mirrored" else {})).scope():
        model = one_layer(LossOfEach)()
    with pytest.raises(
        TrainingError, match=r"^train_step of LossOfEach logs loss with shape \(None,\), which is no sc"
    ):
        tf2dist.fit(model, batches((x, pair[1])))


def test_logs_with_a_value_for_each_example(tf):
    """Their size differs in the last batch, whose values they are; each batch makes one update."""
    model, options = one_layer(Each)(), {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    history = tf2dist.fit(model, x, pair[1], steps_per_execution=3, **options).history
    assert tf2dist.updates(model) == -(-ROWS // BATCH)
    np.testing.assert_allclose(history["each"][0], x[ROWS - ROWS % BATCH :].max(1), rtol=1e-6)
