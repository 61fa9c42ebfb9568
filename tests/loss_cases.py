"""Models whose loss is more than a mean over examples, each with data: 19 rows in batches of 6, the last of 1.

With 2 replicas the last batch leaves one without rows, and with 3 two; the others cut unevenly.
"""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf
from keras import layers, losses, ops

ROWS, BATCH, LENGTH, WORDS, FEATURES = 19, 6, 5, 11, 4


def _random(seed=0):
    return np.random.default_rng(seed)


def words():
    """i32[19, 5]: sentences of 1 to 5 words, filled up with 0."""
    random = _random(1)
    tokens = random.integers(1, WORDS, (ROWS, LENGTH))
    return np.where(np.arange(LENGTH) < random.integers(1, LENGTH + 1, (ROWS, 1)), tokens, 0).astype(np.int32)


def rows():
    return _random(2).normal(size=(ROWS, FEATURES)).astype(np.float32)


def weights_of_rows(seed=3):
    """f32[19], zeros among them."""
    return (_random(seed).random(ROWS) * (np.arange(ROWS) % 4 > 0)).astype(np.float32)


def _embedding():
    """Not trained: what sparse gradients come to is tested elsewhere."""
    return layers.Embedding(WORDS, 4, mask_zero=True, trainable=False)


def _entropy(**kwargs):
    return losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)


SGD = 0.5


def _compiled(model, loss, **kwargs):
    model.compile(keras.optimizers.SGD(SGD), loss, **kwargs)
    return model


def masks(**kwargs):
    model = keras.Sequential([keras.Input((LENGTH,), dtype="int32"), _embedding(), layers.Dense(3)])
    return _compiled(model, _entropy(), weighted_metrics=["accuracy"], **kwargs)


def scaled_masks(**kwargs):
    """Masks, and a loss that is scaled: what comes of each mean is scaled as well."""
    model = masks()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(SGD), initial_scale=64.0)
    model.compile(optimizer, model.loss, **kwargs)
    return model


def one_number_of_words():
    """A loss that is one number for a batch, which no mask changes."""
    model = keras.Sequential([keras.Input((LENGTH,), dtype="int32"), _embedding(), layers.Dense(3)])
    return _compiled(model, lambda y, y_pred: ops.mean(ops.log1p(ops.square(ops.expand_dims(y, -1) - y_pred))))


def half_blank_data():
    """Of the first half of each batch, which is one slice, all words are masked."""
    x = np.where((np.arange(ROWS) % BATCH < BATCH // 2)[:, np.newaxis], 0, words())
    x[-1] = 1  # the last batch is one row
    return x, (x % 3).astype(np.float32)


def masks_data():
    x = words()
    return x, x % 3


def weights_of_words(seed=6):
    return _random(seed).random((ROWS, LENGTH)).astype(np.float32)


def weighted_masks_data():
    return *masks_data(), weights_of_words()


def ignored_class():
    model = keras.Sequential([keras.Input((LENGTH, 1)), layers.Dense(3)])
    return _compiled(model, _entropy(ignore_class=1))


def ignored_class_data():
    x = words()
    return x[..., None] / 5.0, x % 3


def weighted_mean():
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(3, kernel_regularizer="l2")])
    return _compiled(model, losses.MeanSquaredError(reduction="mean_with_sample_weight"), metrics=["mae"])


def weighted_data():
    x = rows()
    return x, x[:, :3] ** 2, weights_of_rows()


def masked_weighted_mean():
    model = keras.Sequential([keras.Input((LENGTH,), dtype="int32"), _embedding(), layers.Dense(3)])
    return _compiled(model, losses.MeanSquaredError(reduction="mean_with_sample_weight"))


def masked_weighted_data():
    """The second half of each batch weighs much more than the first."""
    x = words()
    y = np.stack([x % 2, x % 3, x % 5], -1).astype(np.float32)
    return x, y, np.repeat(np.where(np.arange(ROWS) % BATCH < BATCH // 2, 1, 10)[:, None], LENGTH, 1)


def everything(**kwargs):
    """Masks and a mean over sample weights in two outputs, a sum in a third, regularizers, losses of layers."""
    x = keras.Input((LENGTH,), dtype="int32")
    hidden = _embedding()(x)
    hidden = layers.Dense(4, "tanh", activity_regularizer="l2", kernel_regularizer="l1")(hidden)
    outputs = {
        "tags": layers.Dense(3, name="tags")(hidden),
        "mean": layers.Dense(1, name="mean")(layers.GlobalAveragePooling1D()(hidden)),
        "sum": layers.Dense(1, name="sum")(layers.GlobalMaxPooling1D()(hidden)),
    }
    loss = {
        "tags": _entropy(),
        "mean": losses.MeanAbsoluteError(reduction="mean_with_sample_weight"),
        "sum": losses.Huber(reduction="sum"),
    }
    weights = {"tags": 0.7, "mean": 2.0, "sum": 0.1}
    return _compiled(
        keras.Model(x, outputs), loss, loss_weights=weights, weighted_metrics={"tags": ["accuracy"]}, **kwargs
    )


def everything_data():
    x = words()
    mean = x.mean(1, keepdims=True).astype(np.float32)
    y = {"tags": x % 3, "mean": mean, "sum": mean - 1}
    return x, y, {"tags": weights_of_words(), "mean": weights_of_rows(0), "sum": weights_of_rows(1)}


def own_mean(y, y_pred):
    """One value for all examples: their mean."""
    return ops.mean(ops.square(y - y_pred))


def own_sum(y, y_pred):
    return 0.1 * ops.sum(ops.square(y - y_pred))


def own_root(y, y_pred):
    """Neither a mean nor a sum over examples."""
    return ops.sqrt(ops.mean(ops.square(y - y_pred)))


class OwnMean(losses.Loss):
    def call(self, y_true, y_pred):
        return ops.mean(ops.abs(y_true - y_pred))


def _regression(loss, activation=None, data=None):
    def made():
        return _compiled(keras.Sequential([keras.Input((FEATURES,)), layers.Dense(3, activation)]), loss())

    return made, data or regression_data


def regression_data():
    x = rows()
    return x, x[:, :3] ** 2


def weighted_regression_data():
    return *regression_data(), weights_of_rows()


def segments_data():
    x = rows()
    return x, (x[:, :3] > 0).astype(np.float32)


def classes_data():
    x = rows()
    return x, (x[:, 0] > 0).astype(np.int32)


def weighted_classes_data():
    return *classes_data(), weights_of_rows()


class OwnComputeLoss(keras.Model):
    """A mean of its own beside what it was compiled with."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training=training)
        return loss + 0.5 * ops.mean(ops.abs(y - y_pred)) + 0.1 * ops.mean(ops.square(x))


class OnlyComputeLoss(keras.Model):
    """Compiled without a loss."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred)) + sum(self.losses)


def own_compute_loss():
    x = keras.Input((FEATURES,))
    return _compiled(OwnComputeLoss(x, layers.Dense(3, activity_regularizer="l2")(x)), "mse")


def only_compute_loss():
    x = keras.Input((FEATURES,))
    hidden = layers.Dense(4, "tanh", activity_regularizer="l2", kernel_regularizer="l2")(x)
    return _compiled(OnlyComputeLoss(x, layers.Dense(3)(hidden)), None)


class Adds(layers.Layer):
    """Adds a loss of what goes through it."""

    def __init__(self, loss, **kwargs):
        super().__init__(**kwargs)
        self.loss = loss
        self.supports_masking = True

    def call(self, x):
        self.add_loss(self.loss(x))
        return x


class AddsTwice(Adds):
    """Adds a loss in each of two calls, of unlike values."""

    def call(self, x):
        self.add_loss(3 * self.loss(x))
        return super().call(x)


def _adding(loss, kind=Adds):
    def made():
        model = [keras.Input((FEATURES,)), layers.Dense(4, "tanh"), kind(loss), layers.Dense(3)]
        return _compiled(keras.Sequential(model), "mse")

    return made, regression_data


def mean_of_squares(x):
    return 0.3 * ops.mean(ops.square(x))


def sum_of_squares(x):
    return 0.1 * ops.sum(ops.square(x))


def squares_of_examples(x):
    return 0.1 * ops.sum(ops.square(x), axis=-1)


def trained_table():
    """Two parts of a loss that look up the same rows of a table, by an optimizer that squares gradients."""
    x = keras.Input((LENGTH,), dtype="int32")
    hidden = Adds(lambda x: 1000 * mean_of_squares(x))(layers.Embedding(WORDS, 4, mask_zero=True)(x))
    model = keras.Model(x, layers.Dense(3)(hidden))
    model.compile(keras.optimizers.Adam(0.05), _entropy())
    return model


def table_of_two():
    """Two parts of a loss, one of them over words, that look up equally many rows of one table, and not the same."""
    tagged, rated = (keras.Input((LENGTH,), dtype="int32", name=n) for n in ("tagged", "rated"))
    table = layers.Embedding(WORDS, 4, mask_zero=True)
    rates = layers.Dense(1, name="rates")(layers.GlobalAveragePooling1D()(table(rated)))
    outputs = {"tags": layers.Dense(3, name="tags")(table(tagged)), "rates": rates}
    model = keras.Model({"tagged": tagged, "rated": rated}, outputs)
    return _compiled(model, {"tags": _entropy(), "rates": "mse"}, jit_compile=True)


def table_of_two_data():
    x = words()
    rates = x.mean(1, keepdims=True).astype(np.float32) / 5
    return {"tagged": x, "rated": x % (WORDS - 1) + 1}, {"tags": x % 3, "rates": rates}


class Endpoint(layers.Layer):
    """Takes labels as inputs and adds the loss itself, as Keras's guides show."""

    def __init__(self, loss):
        super().__init__()
        self.loss_fn = loss

    def call(self, targets, logits, sample_weight=None):
        self.add_loss(0.5 * self.loss_fn(targets, logits, sample_weight))
        return keras.ops.softmax(logits)


def endpoint():
    x, y = keras.Input((FEATURES,), name="x"), keras.Input((), dtype="int32", name="y")
    model = keras.Model({"x": x, "y": y}, Endpoint(_entropy())(y, layers.Dense(3)(x)))
    model.compile(keras.optimizers.SGD(SGD))
    return model


def endpoint_data():
    x, y = classes_data()
    return ({"x": x, "y": y},)


def masked_endpoint():
    x, y = keras.Input((LENGTH,), dtype="int32", name="x"), keras.Input((LENGTH,), dtype="int32", name="y")
    logits = layers.Dense(3)(_embedding()(x))
    model = keras.Model({"x": x, "y": y}, Endpoint(_entropy())(y, logits))
    model.compile(keras.optimizers.SGD(SGD), _entropy())
    return model


def masked_endpoint_data():
    x, y = masks_data()
    return {"x": x, "y": y}, y


class Scores(layers.Layer):
    """CTC as an endpoint: a loss with a value for each example."""

    def call(self, targets, logits):
        length = ops.shape(logits)[1] * ops.ones_like(targets[:, 0])
        found = ops.ones_like(targets[:, 0]) * 2
        self.add_loss(0.05 * ops.ctc_loss(targets, logits, found, length, mask_index=0))
        return logits


def ctc_endpoint():
    x, y = keras.Input((FEATURES,), name="x"), keras.Input((2,), dtype="int32", name="y")
    logits = layers.Reshape((LENGTH, 4))(layers.Dense(LENGTH * 4)(x))
    model = keras.Model({"x": x, "y": y}, Scores()(y, logits))
    model.compile(keras.optimizers.SGD(SGD))
    return model


def ctc_endpoint_data():
    y = _random(4).integers(1, 4, (ROWS, 2)).astype(np.int32)
    return ({"x": rows(), "y": y},)


def synchronized(*, masked=False):
    """Statistics over all replicas, and a loss of a layer's outputs: replicas meet before the losses are added up."""
    kernel = layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l2")
    normalize = layers.BatchNormalization(synchronized=True, momentum=0.7)
    if masked:
        first = [keras.Input((LENGTH,), dtype="int32"), _embedding()]
        return _compiled(
            keras.Sequential([*first, kernel, normalize, Adds(mean_of_squares), layers.Dense(3)]), _entropy()
        )
    model = [keras.Input((FEATURES,)), kernel, normalize, Adds(mean_of_squares), layers.Dense(3)]
    return _compiled(keras.Sequential(model), "mse")


def masked_activity():
    """A loss of a layer's outputs beside a mean over words."""
    hidden = layers.Dense(4, "tanh", activity_regularizer="l2")
    model = keras.Sequential([keras.Input((LENGTH,), dtype="int32"), _embedding(), hidden, layers.Dense(3)])
    return _compiled(model, _entropy())


def unreduced():
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.05), losses.MeanSquaredError(reduction=None))
    return model


CASES = {
    "masks": (masks, masks_data),
    "weighted masks": (masks, weighted_masks_data),
    "everything, XLA": (lambda: everything(jit_compile=True), everything_data),
    "one number, a blank slice": (one_number_of_words, half_blank_data),
    "scaled masks": (scaled_masks, masks_data),
    "scaled masks, XLA": (lambda: scaled_masks(jit_compile=True), masks_data),
    "masks, XLA": (lambda: masks(jit_compile=True), masks_data),  # replicas meet when XLA has computed, not before
    "ignored class": (ignored_class, ignored_class_data),
    "mean with sample weight": (weighted_mean, weighted_data),
    "masked mean with sample weight": (masked_weighted_mean, masked_weighted_data),
    "everything": (everything, everything_data),
    "own mean": _regression(lambda: own_mean),
    "own mean, weighted": _regression(lambda: own_mean, data=weighted_regression_data),
    "own Loss": _regression(OwnMean),
    "own sum": _regression(lambda: own_sum),
    "own root": _regression(lambda: own_root),
    "Dice": _regression(losses.Dice, "sigmoid", segments_data),
    "Tversky": _regression(lambda: losses.Tversky(0.3, 0.7), "sigmoid", segments_data),
    "Dice of examples": _regression(lambda: losses.Dice(axis=1), "sigmoid", segments_data),
    "Circle": _regression(lambda: losses.Circle(gamma=2), "sigmoid", classes_data),
    "Circle, weighted": _regression(lambda: losses.Circle(gamma=2), "sigmoid", weighted_classes_data),
    "own compute_loss": (own_compute_loss, regression_data),
    "only compute_loss": (only_compute_loss, regression_data),
    "added mean": _adding(mean_of_squares),
    "added twice": _adding(mean_of_squares, AddsTwice),
    "added sum": _adding(sum_of_squares),
    "added values of examples": _adding(squares_of_examples),
    "trained table": (trained_table, masks_data),
    "table of two, XLA": (table_of_two, table_of_two_data),
    "endpoint": (endpoint, endpoint_data),
    "masked endpoint": (masked_endpoint, masked_endpoint_data),
    "CTC endpoint": (ctc_endpoint, ctc_endpoint_data),
    "masked activity": (masked_activity, masks_data),
    "synchronized": (synchronized, regression_data),
    "synchronized, masked": (lambda: synchronized(masked=True), masks_data),
    "unreduced": (unreduced, regression_data),
}


# One of each kind, for where a case takes long.
FEW = ("everything", "own root", "Circle", "own mean, weighted", "added sum", "masked endpoint", "synchronized")

_NOT_CUT = "is not made of the losses of its parts"


def refused(name, strategy):
    """Words of the reason for which workers or peers cannot train the case; None if they can."""
    if name in ("Dice", "Tversky", "Circle", "Circle, weighted", "own sum", "own root", "own mean, weighted"):
        return _NOT_CUT
    if strategy == "ps" and name.startswith("synchronized"):
        return "synchronized=True"
    return None


def model_of(name, strategy=None):
    """The case's model, with the same weights each time."""
    keras.backend.clear_session(free_memory=False)
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        keras.utils.set_random_seed(5)
        return CASES[name][0]()


def found(model, history):
    """What is compared: the history, and every weight and statistic."""
    return dict(history), [keras.ops.convert_to_numpy(v) for v in model.variables if "seed" not in v.path]


def by_keras(name, epochs=2):
    """Keras's own training on one device."""
    model = model_of(name)
    dataset = tf.data.Dataset.from_tensor_slices(CASES[name][1]()).batch(BATCH)
    history = model.fit(dataset, epochs=epochs, verbose=0).history
    evaluated = model.evaluate(dataset, verbose=0, return_dict=True)
    return *found(model, history), evaluated


def by_tf2dist(name, strategy, epochs=2, **kwargs):
    """Ours, on a strategy; an epoch is one execution of 4 steps, the last of which has fewer rows."""
    import tf2dist

    model, data = model_of(name, strategy), CASES[name][1]()
    options = {"batch_size": BATCH, "shuffle": False, "epochs": epochs, "steps_per_execution": 4, "verbose": 0}
    history = tf2dist.fit(model, data, **options, **kwargs).history
    return *found(model, history), tf2dist.evaluate(model, data, batch_size=BATCH, return_dict=True)


def check(ours, theirs):
    """Compares two trainings."""
    history, weights, evaluated = ours
    history.pop("dropped_gradients", None)
    assert history.keys() == theirs[0].keys()
    for key, values in theirs[0].items():
        np.testing.assert_allclose(history[key], values, rtol=5e-4, atol=1e-6, err_msg=key)
    for number, (a, b) in enumerate(zip(weights, theirs[1], strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=5e-5, err_msg=f"variable {number}")
    for key, value in theirs[2].items():
        np.testing.assert_allclose(evaluated[key], value, rtol=5e-4, atol=1e-6, err_msg=f"evaluated {key}")
