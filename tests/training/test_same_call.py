"""`model.fit(` becomes `tf2dist.fit(model, `, and nothing else changes: arguments, their order, what is returned."""

import inspect

import keras
import numpy as np
import pytest

import tf2dist
from tests.conftest import ONE_QUICKLY, strategies
from tests.models import OPTIMIZERS, classifier, data, weights

strategy = strategies(ONE_QUICKLY)

BATCH = 16


def compiled(strategy=None, kind=None, metrics=("accuracy",)):
    """The classifier with weighted metrics; `kind` is a class of models, made of its layers."""
    if strategy is not None:
        with strategy.scope():
            return compiled(None, kind, metrics)
    model = classifier(OPTIMIZERS["adam"]())
    if kind is not None:
        model = kind(model.inputs, model.outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=list(metrics), weighted_metrics=["accuracy"] if metrics else None)
    return model


def assert_same(ours, theirs):
    for a, b in zip(weights(ours), weights(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict"])
def test_the_arguments_are_keras_own_in_its_order(name):
    ours = [(p.name, p.default) for p in inspect.signature(getattr(tf2dist, name)).parameters.values()]
    theirs = inspect.signature(getattr(keras.Model, name)).parameters.values()
    theirs = [("model" if p.name == "self" else p.name, p.default) for p in theirs if p.kind != p.VAR_KEYWORD]
    assert ours[: len(theirs)] == theirs


@pytest.mark.slow
def test_positional_arguments_weights_and_a_split(strategy):
    x, y = data()
    sample_weight = np.linspace(0.0, 2.0, len(x), dtype=np.float32)
    arguments = (x, y, BATCH, 3, 0, None, 0.3, None, False)
    model, theirs = compiled(strategy), compiled()
    history = tf2dist.fit(model, *arguments, sample_weight=sample_weight).history
    expected = theirs.fit(*arguments, sample_weight=sample_weight).history
    assert_same(model, theirs)
    assert list(history) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4, err_msg=name)


@pytest.mark.slow
def test_evaluate_and_predict_return_what_keras_returns(strategy):
    x, y = data()
    sample_weight = np.linspace(0.0, 2.0, len(x), dtype=np.float32)
    model, theirs = compiled(strategy), compiled()
    for arguments in ((x, y, BATCH, 0), (x, y, BATCH, 0, sample_weight), (x, y, None, 0, None, 2)):
        expected = theirs.evaluate(*arguments)
        found = tf2dist.evaluate(model, *arguments)
        assert isinstance(found, list)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        expected = theirs.evaluate(*arguments, return_dict=True)
        assert tf2dist.evaluate(model, *arguments, return_dict=True) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(tf2dist.predict(model, x, 7, 0), theirs.predict(x, 7, 0), rtol=1e-4, atol=1e-6)
    model = compiled(strategy, metrics=())
    assert tf2dist.evaluate(model, x, y) == pytest.approx(compiled(metrics=()).evaluate(x, y, verbose=0), rel=1e-4)


class Count(keras.callbacks.Callback):
    """Counts epochs, and evaluations."""

    def __init__(self):
        super().__init__()
        self.epochs = self.evaluations = 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1

    def on_test_end(self, logs=None):
        self.evaluations += 1


@pytest.mark.slow
def test_one_callback_many_or_a_list_of_keras(strategy):
    model, count = compiled(strategy), Count()
    tf2dist.fit(model, *data(), callbacks=count)
    tf2dist.fit(model, *data(), callbacks=(count, Count()))
    tf2dist.fit(model, *data(), callbacks=keras.callbacks.CallbackList([count], model=model))
    tf2dist.evaluate(model, *data(), callbacks=count)
    tf2dist.evaluate(model, *data(), callbacks=None)
    assert (count.epochs, count.evaluations) == (3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("frequency", [2, [1, 3], [4]])
def test_epochs_with_validation_are_those_of_keras(frequency):
    class Validated(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.epochs = []

        def on_epoch_end(self, epoch, logs=None):
            self.epochs += [epoch] if "val_loss" in logs else []

    ours, theirs = Validated(), Validated()
    arguments = {"epochs": 4, "validation_data": data(), "validation_freq": frequency, "batch_size": 64, "verbose": 0}
    tf2dist.fit(compiled(), *data(), callbacks=ours, **arguments)
    compiled().fit(*data(), callbacks=theirs, **arguments)
    assert ours.epochs == theirs.epochs
    assert ours.epochs


@pytest.mark.slow
def test_the_history_is_that_of_fit():
    """Also when a callback evaluates or predicts, in the end, too; and it stays the model's afterwards."""

    class Look(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            tf2dist.predict(self.model, data()[0])
            tf2dist.evaluate(self.model, *data())

    model = compiled()
    history = tf2dist.fit(model, *data(), epochs=2, callbacks=Look())
    tf2dist.evaluate(model, *data())
    assert model.history is history
    assert len(history.history["loss"]) == 2
    assert history.epoch == [0, 1]


def test_a_split_of_several_inputs():
    """In a list by themselves, as arrays of an added loss without labels; the split is unpacked by Keras's rules."""
    a, b = np.arange(12, dtype=np.float32).reshape(6, 2), np.ones((6, 2), np.float32)
    seen = []

    class Added(keras.layers.Layer):
        def call(self, pair):
            self.add_loss(keras.ops.mean(keras.ops.square(pair[0] - pair[1])))
            return pair[0]

    inputs = [keras.Input((2,)), keras.Input((2,))]
    model = keras.Model(inputs, Added()(inputs))
    model.compile("sgd")
    tf2dist.fit(model, [a, b], batch_size=2, validation_split=0.34, callbacks=keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs)))  # fmt: skip
    assert seen[0]["val_loss"] == pytest.approx(np.mean((a[3:] - 1) ** 2), rel=1e-5)
    assert seen[0]["loss"] != seen[0]["val_loss"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (lambda tf, x, y: {"x": None}, "x is None: give arrays"),
        (lambda tf, x, y: {"x": rows(tf, x, y), "y": y}, "y is for arrays, found x of type"),
        (lambda tf, x, y: {"x": rows(tf, x, y), "sample_weight": y}, "sample_weight is for arrays, found x of type"),
        (lambda tf, x, y: {"x": rows(tf, x, y), "validation_split": 0.1}, "validation_split is for arrays, found"),
        (lambda tf, x, y: {"x": [[1.0]] * 5, "y": y[:5], "validation_split": 0.4}, "validation_split is for arrays"),
        (lambda tf, x, y: {"x": x[:1], "y": y[:1], "validation_split": 0.1}, "cuts 1 examples into 0 to train on"),
        (lambda tf, x, y: {"x": x, "y": y, "validation_split": 1.5}, "validation_split=1.5 cuts"),
        (lambda tf, x, y: {"x": x, "y": y, "callbacks": "best"}, "callbacks must be keras.callbacks.Callback objects"),
    ],
)
def test_what_cannot_be_is_refused(tf, arguments, said):
    arguments = arguments(tf, *data())
    with pytest.raises(ValueError, match=said) as error:
        tf2dist.fit(compiled(), **arguments)
    assert "\n" not in str(error.value)


def rows(tf, x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


class Doubles(keras.Model):
    """Has methods of its own, which change the data and call Keras's, as tasks of keras-hub do."""

    def fit(self, x=None, y=None, **kwargs):
        return super().fit(2 * x, y, **kwargs)

    def evaluate(self, x=None, y=None, **kwargs):
        return super().evaluate(2 * x, y, **kwargs)

    def predict(self, x, **kwargs):
        return super().predict(2 * x, **kwargs)


class DoublesAlways(Doubles):
    """As keras-hub has it: what `fit` validates with is changed, too."""

    def evaluate(self, x=None, y=None, **kwargs):
        kwargs.pop("_use_cached_eval_dataset", None)
        return super().evaluate(x, y, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, Doubles, DoublesAlways])
def test_a_bound_model_has_our_methods(strategy, kind, monkeypatch):
    x, y = data()
    called, beside, kerass = [], compiled(), keras.Model.fit
    trainer = next(c for c in keras.Model.__mro__ if "fit" in vars(c))
    monkeypatch.setattr(trainer, "fit", lambda self, *args, **kwargs: called.append(self) or 0)
    model = tf2dist.bind(compiled(strategy, kind))
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(self.model.predict(x, verbose=0))
            beside.fit(x, y)  # Keras's own, also in here

    arguments = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, "validation_data": (x, y)}
    history = model.fit(x, y, callbacks=Look(), **arguments)
    assert called == [beside, beside]
    monkeypatch.undo()
    assert keras.Model.fit is kerass
    theirs = compiled(None, kind)
    expected = theirs.fit(x, y, **arguments)
    assert list(history.history) == list(expected.history)
    for name, values in expected.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-4, err_msg=name)
    assert_same(model, theirs)
    np.testing.assert_allclose(model.predict(x, verbose=0), theirs.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(seen[-1], model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), theirs.evaluate(x, y, verbose=0), rtol=1e-4)
    assert tf2dist.updates(model) == 2 * -(-len(x) // BATCH)


def test_a_bound_model_is_saved_and_copied_as_any_other(tf, tmp_path):
    x, y = data()
    model = tf2dist.bind(compiled())
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(loaded, model)
    assert type(loaded).fit is keras.Model.fit
    assert "fit" not in vars(loaded)
    assert "fit" not in vars(keras.models.clone_model(model))
