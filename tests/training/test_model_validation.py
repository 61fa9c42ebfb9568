"""Models that cannot be trained are refused before anything runs, with the reason."""

import types

import keras
import numpy as np
import pytest
import tensorflow

import tf2dist
from tests.conftest import ONE_QUICKLY, sampled, strategies
from tests.models import CLASSES, FEATURES, OPTIMIZERS, ROWS, classifier, data
from tf2dist.training import metric_validation

strategy = strategies(ONE_QUICKLY)
# Where several see a part of the data each.
several = pytest.mark.parametrize("strategy", sampled(("mirrored", "central"), ("mirrored",)), indirect=True)


def fit(model, **kwargs):
    return tf2dist.fit(model, data(), **kwargs)


@keras.saving.register_keras_serializable("tests")
class Largest(keras.metrics.Metric):
    """Its state does not add up: it is a maximum."""

    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value


@keras.saving.register_keras_serializable("tests")
class Rows(keras.metrics.Metric):
    """A metric of the user's own whose state adds up."""

    def __init__(self, name="rows", **kwargs):
        super().__init__(name=name, **kwargs)
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(keras.ops.cast(keras.ops.shape(y_pred)[0], "float32"))

    def result(self):
        return self.count


def compiled(strategy, **kwargs):
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"]())
        model.compile(OPTIMIZERS["sgd"](), model.loss, **kwargs)
    return model


@several
def test_a_metric_that_does_not_add_up(strategy):
    with pytest.raises(ValueError, match=r"metric largest \(Largest\) does not add up"):
        fit(compiled(strategy, metrics=["accuracy", Largest()]))


class Watches(keras.layers.Layer):
    """Measures what passes, and adds noise."""

    def __init__(self, metric):
        super().__init__()
        self.metric = metric
        self.noise = keras.layers.GaussianNoise(0.1, seed=1)

    def call(self, x, training=False):
        self.metric.update_state(x, x)
        return self.noise(x, training=training)


class FromTen(Rows):
    """Its state adds up, from another beginning."""

    def reset_state(self):
        self.count.assign(10.0)


class Latest(Largest):
    """The last value that it was given."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.max(y_pred) + 1.0)


class AnyAboveOne(keras.metrics.Metric):
    """Its state is true or false."""

    def __init__(self, name="any_above_one"):
        super().__init__(name=name)
        self.seen = self.add_weight(shape=(), initializer="zeros", dtype="bool", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign(keras.ops.logical_or(self.seen, keras.ops.any(y_pred > 1.0)))

    def result(self):
        return keras.ops.cast(self.seen, "float32")

    def reset_state(self):
        self.seen.assign(False)


def watching(strategy, metric, model_class=keras.Model, **kwargs):
    with strategy.scope():
        inputs = keras.Input((FEATURES,))
        model = model_class(inputs, keras.layers.Dense(CLASSES)(Watches(metric())(inputs)))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **kwargs)
    return model


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        (Largest, "what a batch brings depends on what came before"),
        (Latest, "what a batch brings depends on what came before"),
        (FromTen, "it does not begin at zero"),
    ],
)
@several
def test_a_metric_of_a_layer_that_does_not_add_up(strategy, metric, why):
    with pytest.raises(ValueError, match=rf"\({metric.__name__}\) does not add up: {why}"):
        fit(watching(strategy, metric, metrics=["accuracy"]))


@pytest.mark.parametrize(
    "metric", sampled([Largest, Latest, FromTen, AnyAboveOne], [Largest, AnyAboveOne], [Latest, FromTen])
)
@pytest.mark.parametrize("of_layer", [False, True])
def test_on_one_device_metrics_need_not_add_up(tf, monkeypatch, metric, of_layer):
    result = metric.result
    # Keras's history would hold the variable itself, and with it what the validation has made of it.
    monkeypatch.setattr(metric, "result", lambda self: result(self) + 0.0)

    def made(strategy):
        keras.utils.set_random_seed(3)
        if of_layer:
            return watching(strategy, metric, metrics=["accuracy"])
        return compiled(strategy, metrics=["accuracy", metric()])

    x, y = data()
    # TensorFlow has crashed where Keras's own loop frees an iterator of a OneDeviceStrategy.
    model, theirs = made(tf2dist.make_strategy("one")), made(tf.distribute.get_strategy())
    options = {"epochs": 2, "batch_size": 10, "shuffle": False, "verbose": 0, "validation_data": (x[:7], y[:7])}
    # Outside of strategies Keras builds metrics after their first reset, which FromTen would miss.
    theirs.evaluate(x, y, verbose=0)
    expected = theirs.fit(x, y, **options).history
    found = tf2dist.fit(model, x, y, steps_per_execution=4, **options).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
    evaluated, expected = (f(x, y, verbose=0) for f in (tf2dist.bind(model).evaluate, theirs.evaluate))
    np.testing.assert_allclose(evaluated, expected, rtol=1e-5)


def test_a_state_that_is_true_or_false_is_no_sum(tf):
    model = compiled(tf2dist.make_strategy("one"), metrics=[AnyAboveOne()])
    fit(model)  # as Keras does
    spec = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), data())
    with pytest.raises(ValueError, match=r"AnyAboveOne.*does not add up: its 'seen' is true or false, and no number"):
        metric_validation.check_metrics(model, spec)
    with pytest.raises(ValueError, match=r"AnyAboveOne.*does not add up: its 'seen' is true or false, and no number"):
        fit(model := compiled(tf2dist.make_strategy("mirrored", replicas=2), metrics=[AnyAboveOne()]))
    assert tf2dist.predict(model, data()[0]).shape == (ROWS, CLASSES)  # which needs no metric


def test_a_metric_of_a_layer_that_adds_up(strategy):
    found = fit(watching(strategy, Rows, metrics=["accuracy"])).history["rows"]
    assert found == [ROWS] * len(found)


class MeasuresInItsLoss(keras.Model):
    """Holds a metric that it updates in `compute_loss`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.largest = Largest()

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.largest.update_state(y, y_pred)
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)


@several
def test_a_metric_of_a_loss_that_does_not_add_up(strategy):
    with pytest.raises(ValueError, match=r"metric largest \(Largest\) does not add up"):
        fit(watching(strategy, Rows, MeasuresInItsLoss))


@pytest.mark.parametrize("second", sampled(["validation", "evaluate", "fit"], [], ["validation", "evaluate", "fit"]))
def test_a_metric_of_ones_own_that_holds_what_came_before(strategy, second):
    """It is looked at again for data of another kind, here with weights."""
    model, (x, y) = compiled(strategy, metrics=[Rows()]), data()
    weights = np.ones(len(x), np.float32)
    if second == "validation":
        history = fit(model, epochs=2, validation_data=(x, y, weights)).history
        assert history["rows"] == history["val_rows"] == [103, 103]
        return
    fit(model)
    if second == "evaluate":
        assert tf2dist.evaluate(model, x, y, sample_weight=weights, return_dict=True, verbose=0)["rows"] == 103
    else:
        assert tf2dist.fit(model, x, y, sample_weight=weights, verbose=0).history["rows"] == [103]


@pytest.mark.slow
def test_a_metric_with_several_results(strategy):
    """Keras logs each by its own name, in `fit` and `evaluate`."""

    class Both(Rows):
        def result(self):
            return {"rows": self.count, "parts": {"half": self.count / 2}}

    x, y = data()
    model, plain = compiled(strategy, metrics=[Both(), "accuracy"]), classifier(OPTIMIZERS["sgd"]())
    plain.compile(OPTIMIZERS["sgd"](), plain.loss, metrics=[Both(), "accuracy"])
    history, expected = fit(model).history, plain.fit(x, y, verbose=0).history
    assert history.keys() == expected.keys() == {"loss", "accuracy", "rows", "half"}
    assert (history["rows"], history["half"]) == ([103], [51.5])
    found, expected = tf2dist.evaluate(model, x, y, verbose=0), plain.evaluate(x, y, verbose=0)
    assert [found[1], *found[3:]] == [expected[1], *expected[3:]] == [103, 51.5]  # between them the accuracy


@several
def test_a_metric_that_begins_elsewhere(strategy):
    class Offset(Rows):
        def reset_state(self):
            self.count.assign(1.0)

    with pytest.raises(ValueError, match=r"metric rows \(Offset\) does not add up: it does not begin at zero"):
        fit(compiled(strategy, metrics=[Offset()]))


def root_of_mean(y_true, y_pred):
    return keras.ops.sqrt(keras.ops.mean((keras.ops.one_hot(y_true, 3) - y_pred) ** 2))


def largest_output(y_true, y_pred):
    return keras.ops.max(y_pred)


def makes_no_sense_of_other_rows(y_true, y_pred):
    if tensorflow.executing_eagerly():
        raise TypeError
    return keras.ops.max(y_pred)


@pytest.mark.slow
@pytest.mark.parametrize("metric", [keras.losses.Dice(), keras.losses.tversky, keras.losses.Tversky(name="t")])
def test_an_overlap_of_a_batch_as_a_metric(metric):
    """Keras's Dice and Tversky sum over the batch unless they are given an axis."""
    x, _ = data()
    y = np.eye(3, dtype="float32")[data()[1]]
    made = []
    for each in (metric, keras.losses.Dice(axis=(1,))):
        with tf2dist.make_strategy("mirrored", replicas=2).scope():
            model = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Dense(3, "softmax")])
            model.compile("sgd", "categorical_crossentropy", metrics=[each])
        made.append(model)
    with pytest.raises(ValueError, match="for a batch is not the mean of those for its parts"):
        tf2dist.evaluate(made[0], x, y)
    expected = keras.models.clone_model(made[1])
    expected.compile("sgd", "categorical_crossentropy", metrics=[keras.losses.Dice(axis=(1,))])
    expected.set_weights(made[1].get_weights())
    theirs = expected.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
    assert tf2dist.evaluate(made[1], x, y, batch_size=16, verbose=0, return_dict=True) == pytest.approx(
        theirs, rel=1e-5
    )


def share_of_right(y_true, y_pred):
    right = keras.ops.argmax(y_pred, axis=-1) == keras.ops.cast(y_true, "int32")
    return keras.ops.mean(keras.ops.cast(right, "float32"))


@pytest.mark.slow
@pytest.mark.parametrize("metric", [root_of_mean, largest_output])
@pytest.mark.parametrize("call", ["fit", "evaluate"])
def test_a_function_of_a_batch_that_its_slices_do_not_tell(metric, call):
    """On one device it is, as in Keras, the mean over batches; on two it would be another number."""
    x, y = data()
    plain = classifier(OPTIMIZERS["sgd"]())
    plain.compile(OPTIMIZERS["sgd"](), plain.loss, metrics=[metric])
    expected = plain.evaluate(x, y, return_dict=True, verbose=0)
    one = compiled(tf2dist.make_strategy("one"), metrics=[metric])
    found = tf2dist.evaluate(one, x, y, return_dict=True, verbose=0)
    assert found[metric.__name__] == pytest.approx(expected[metric.__name__], rel=1e-5)
    metrics = ["accuracy", makes_no_sense_of_other_rows, metric]  # that one cannot be tried, and the last one can
    two = compiled(tf2dist.make_strategy("mirrored", replicas=2), metrics=metrics)
    with pytest.raises(ValueError, match=f"metric {metric.__name__} for a batch is not the mean of those for its part"):
        tf2dist.fit(two, x, y) if call == "fit" else tf2dist.evaluate(two, x, y)


def cross_entropy(y_true, y_pred):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y_true, y_pred)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [lambda: share_of_right, lambda: cross_entropy, lambda: keras.losses.SparseCategoricalCrossentropy(True)]
)
def test_a_function_of_a_batch_that_is_a_mean_over_examples(make):
    """Also on two devices the number that Keras gives, though 7 rows are left for the last batch."""
    x, y = data()
    plain = classifier(OPTIMIZERS["sgd"]())
    plain.compile(OPTIMIZERS["sgd"](), plain.loss, metrics=[make()])
    expected = plain.evaluate(x, y, batch_size=16, return_dict=True, verbose=0)
    two = compiled(tf2dist.make_strategy("mirrored", replicas=2), metrics=[make()])
    found = tf2dist.evaluate(two, x, y, batch_size=16, return_dict=True, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_mean_over_examples_in_16_bits():
    """Its rounding is not taken for another mean."""
    x, y = data()

    def distance(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(keras.ops.cast(y_true[:, None], y_pred.dtype) - y_pred))

    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Dense(3, dtype="mixed_bfloat16")])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True), metrics=[distance])
    assert np.isfinite(tf2dist.evaluate(model, x, y, return_dict=True, verbose=0)["distance"])


def test_a_metric_of_ones_own_that_adds_up(strategy):
    history = fit(compiled(strategy, metrics=[Rows(), "accuracy"]), epochs=2).history
    assert history["rows"] == [103, 103]


def test_predict_looks_at_no_metric(strategy):
    """One's own is not tried on labels that there are none of; one that cannot be trained with does no harm."""

    class Sum(Rows):
        def update_state(self, y_true, y_pred, sample_weight=None):
            self.count.assign_add(keras.ops.cast(keras.ops.sum(keras.ops.abs(y_true)), "float32"))

    model = compiled(strategy, metrics=[Sum()])
    fit(model)
    assert tf2dist.predict(model, data()[0]).shape == (103, 3)
    assert tf2dist.predict(compiled(strategy, metrics=[Largest()]), data()).shape == (103, 3)


def test_a_step_of_ones_own_on_several_replicas_is_no_graph(tf):
    """Compiled models are trained as in graphs, and so is such a step on one device."""

    class OwnStep(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        inputs = keras.Input((3,))
        model = OwnStep(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(
            ValueError, match=r"OwnStep overrides train_step, and .*run_functions_eagerly.* strategy one"
        ):
            tf2dist.fit(model, np.zeros([4, 3]), np.zeros([4, 1]), verbose=0)
    finally:
        tf.config.run_functions_eagerly(False)


def test_run_eagerly(strategy):
    with pytest.raises(ValueError, match="run_eagerly=True"):
        fit(compiled(strategy, run_eagerly=True))


def test_something_that_is_no_model(tf):
    with pytest.raises(ValueError, match=r"must be a keras.Model, found list"):
        fit([])


def test_parameter_server_options_elsewhere(strategy):
    with pytest.raises(ValueError, match="is for strategy ps"):
        fit(compiled(strategy), parameter_server=tf2dist.ParameterServer("sync"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"update": "both"}, '"async" or "sync", found \'both\''),
        ({"backup_workers": -1}, "at least 0, found -1"),
        ({"local_steps": 0}, "at least 1, found 0"),
        ({"backup_workers": 1}, "async waits for nobody"),
        ({"update": "sync", "local_steps": 2}, 'update="async"'),
    ],
)
def test_parameter_server_options(wrong, message):
    with pytest.raises(ValueError) as caught:
        tf2dist.ParameterServer(**wrong)
    assert message in str(caught.value)


class RootOfMean(keras.Model):
    """Its loss of a batch does not follow from those of the batch's parts."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training=training)
        return keras.ops.sqrt(loss)


@pytest.mark.parametrize("call", [tf2dist.fit, tf2dist.evaluate])
def test_a_loss_without_targets(strategy, call):
    with pytest.raises(tf2dist.errors.UsageError, match="needs targets, and the data has none: give y"):
        call(compiled(strategy), data()[0])


def test_no_loss(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3)])
        model.compile("sgd")
    with pytest.raises(tf2dist.errors.UsageError, match="the model has no loss: it was compiled without one"):
        fit(model)


@pytest.mark.slow
def test_losses_that_need_no_targets(strategy):
    """A `compute_loss` of the model's own, and losses that layers add."""

    class Own(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(y_pred**2)

    x = data()[0]
    layers = keras.layers.Dense(2, kernel_initializer="ones", activity_regularizer=keras.regularizers.L2(1.0))
    with strategy.scope():
        own, added = Own([keras.layers.Dense(2, kernel_initializer="ones")]), keras.Sequential([layers])
        own.compile("sgd", "mse")
        added.compile("sgd")
    for model in (own, added):
        losses = tf2dist.fit(model, x, epochs=2, verbose=0).history["loss"]
        assert losses[1] < losses[0]


def test_a_loss_that_cannot_be_cut(tf):
    def made():
        x = keras.Input((12,))
        model = RootOfMean(x, keras.layers.Dense(3)(x))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    for seed in range(4):  # some weights make outputs that are nearly alike
        keras.utils.set_random_seed(seed)
        with tf2dist.make_strategy("mirrored", replicas=2).scope():
            model = made()
        with pytest.raises(ValueError, match="compute_loss of RootOfMean must be a mean over examples"):
            fit(model)
    fit(made())


@pytest.mark.slow
def test_random_losses_cannot_be_tried(tf):
    """Nothing is found out, so the model is trained."""

    class Noise(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(1)

        def call(self, x):
            noise = keras.random.normal(keras.ops.shape(x), seed=self.seeds)
            self.add_loss(keras.ops.mean(keras.ops.square(x + noise)))
            return x

    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        model = classifier(OPTIMIZERS["sgd"](), Noise())
    fit(model, epochs=1, steps_per_epoch=1)


class OwnOptimizer(keras.Model):
    """Has an optimizer of its own, and none from `compile`."""

    def __init__(self):
        super().__init__()
        self.dense, self.mine = keras.layers.Dense(1), keras.optimizers.SGD(0.1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, batch):
        x, y = batch
        with tensorflow.GradientTape() as tape:
            loss = keras.ops.mean((self(x)[:, 0] - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.mine.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_without_an_optimizer_in_compile(tf, tmp_path, replicas):
    x = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    y = x.sum(1)

    def trained(fit, strategy, **more):
        with strategy.scope():
            keras.utils.set_random_seed(0)
            model = OwnOptimizer()
            model.compile(optimizer=None)
            fit(model, x, y, batch_size=8, epochs=2, shuffle=False, **more)
        return model.get_weights()

    strategy = tf2dist.make_strategy("mirrored" if replicas > 1 else "one", replicas=replicas)
    ours = trained(tf2dist.fit, strategy, callbacks=tf2dist.Checkpoint(str(tmp_path)))
    theirs = trained(lambda model, *a, **k: model.fit(*a, verbose=0, **k), tf.distribute.get_strategy())
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_step_that_is_set_on_the_model_itself(tf):
    """Keras traces `model.train_step`, whose ever it is."""
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    before = model.get_weights()
    model.train_step = types.MethodType(lambda self, batch: {"mine": keras.ops.mean(batch[0]) + 6.0}, model)
    history = tf2dist.fit(model, np.ones([8, 3], np.float32), np.ones(8, np.float32)).history
    assert history == {"mine": [7.0]}
    np.testing.assert_array_equal(model.get_weights()[0], before[0])


def test_an_activity_regularizer_that_is_a_mean_of_the_batch(tf):
    """Keras divides what it returns by the number of examples: of slices another one."""

    def mean_of_squares(outputs):
        return keras.ops.mean(outputs**2)

    x, y = data()
    with tf2dist.make_strategy("mirrored", replicas=2).scope():
        hidden = keras.layers.Dense(4, "tanh", activity_regularizer=mean_of_squares)
        model = keras.Sequential([keras.Input(x.shape[1:]), hidden, keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    with pytest.raises(ValueError, match="several replicas"):
        tf2dist.fit(model, x, y)
