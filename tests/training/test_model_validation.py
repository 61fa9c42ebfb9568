"""Models that cannot be trained are refused before anything runs, with the reason."""

import keras
import pytest

import tf2dist
from tests.models import OPTIMIZERS, classifier, data


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


def test_a_metric_that_does_not_add_up(strategy):
    with pytest.raises(ValueError, match=r"metric largest \(Largest\) does not add up"):
        fit(compiled(strategy, metrics=["accuracy", Largest()]))


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


def test_run_eagerly(strategy):
    with pytest.raises(ValueError, match="run_eagerly=True"):
        fit(compiled(strategy, run_eagerly=True))


def test_something_that_is_no_model(tf):
    with pytest.raises(ValueError, match=r"must be a keras.Model, found list"):
        fit([])


def test_made_outside_of_the_scope(tf):
    strategy = tf2dist.make_strategy("mirrored", replicas=2)
    outside = classifier(OPTIMIZERS["sgd"]())
    with strategy.scope():
        model = keras.Sequential([keras.Input((12,)), *outside.layers])
        model.compile(OPTIMIZERS["sgd"](), outside.loss)
    with pytest.raises(ValueError, match="made outside of the strategy's scope"):
        fit(model)


def test_made_outside_of_the_job(tf, monkeypatch):
    from tf2dist.runtime import session

    joined = session.Session()
    joined.strategy = tf2dist.make_strategy("mirrored", replicas=2)
    monkeypatch.setattr(session, "_current", joined)
    with pytest.raises(ValueError, match=r"outside of the scope of this job's strategy \(MirroredStrategy\)"):
        fit(classifier(OPTIMIZERS["sgd"]()))


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
