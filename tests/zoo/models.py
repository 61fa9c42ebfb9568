"""The cases: small networks of many kinds, in the manner of Keras's examples, with data from seeded generators."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers, losses, metrics, ops, optimizers

from tests.models import Measures
from tests.zoo import Band, Case, Equal, Refused

schedules = optimizers.schedules


def _random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _rows(rows: int, features: int, seed: int = 0) -> np.ndarray:
    return _random(seed).normal(size=(rows, features)).astype(np.float32)


def _labels(x: np.ndarray, classes: int) -> np.ndarray:
    """i64[rows]: what a linear map of the rows says."""
    flat = x.reshape(len(x), -1)
    return np.argmax(flat @ _random(1).normal(size=(flat.shape[1], classes)), axis=1)


def _one_hot(x: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[_labels(x, classes)]


# Plain networks ------------------------------------------------------------------------------------------------


def mlp():
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(8, "relu", kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-2)),
            layers.Dense(8, "tanh", bias_regularizer="l2"),
            layers.Dense(4),
        ]
    )
    model.compile(
        optimizers.Adam(0.01, amsgrad=True),
        losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            "accuracy",
            metrics.SparseTopKCategoricalAccuracy(2, name="top"),
            metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy"),
        ],
    )
    return model


def mlp_data():
    x = _rows(53, 10)
    return x, _labels(x, 4)


def selu():
    """Residual dense blocks, mixed with concatenation."""
    inputs = keras.Input((10,))
    x = layers.Dense(8, "selu", kernel_initializer="lecun_normal")(inputs)
    y = layers.Dense(8, "gelu")(x)
    x = layers.Add()([x, y])
    x = layers.Concatenate()([x, inputs])
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(
        optimizers.Nadam(0.01),
        losses.Huber(),
        metrics=[
            metrics.MeanAbsoluteError(),
            metrics.MeanAbsolutePercentageError(),
            metrics.MeanSquaredLogarithmicError(),
            metrics.LogCoshError(),
        ],
    )
    return model


def selu_data():
    x = _rows(45, 10)
    return x, 3 + np.abs(x[:, :1])


def autoencoder():
    inputs = keras.Input((12,))
    code = layers.Dense(3, "relu")(inputs)
    encoder = keras.Model(inputs, code, name="encoder")
    decoder = keras.Sequential([keras.Input((3,)), layers.Dense(12, "sigmoid")], name="decoder")
    model = keras.Model(inputs, decoder(encoder(inputs)))
    model.compile(
        optimizers.Adagrad(0.5),
        "binary_crossentropy",
        metrics=["mse", "cosine_similarity", metrics.BinaryCrossentropy(), metrics.BinaryIoU(), "binary_accuracy"],
    )
    return model


def autoencoder_data():
    x = np.tile(_rows(45, 3) > 0, 4).astype(np.float32)
    return x, x


def hinge():
    """A support vector machine on a hidden layer. Muon is for matrices, and leaves the biases to Adam."""
    model = keras.Sequential([keras.Input((10,)), layers.Dense(8, "tanh"), layers.Dense(1)])
    model.compile(optimizers.Muon(0.03), "squared_hinge", metrics=["hinge", metrics.SquaredHinge(), metrics.Hinge()])
    return model


def hinge_data():
    x = _rows(45, 10)
    return x, np.sign(x[:, :1])


# Images --------------------------------------------------------------------------------------------------------


def images(rows=45, seed=0):
    label = np.arange(rows) % 3
    row, column = np.indices((8, 8)) % 2
    x = 0.5 * _random(seed).random((rows, 8, 8)) + np.stack([row, column, row * column])[label]
    return x[..., None].astype(np.float32), np.eye(3, dtype=np.float32)[label]


def convnet():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.SeparableConv2D(4, 2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile(
        optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        losses.CategoricalCrossentropy(label_smoothing=0.1),
        metrics=[
            metrics.CategoricalAccuracy(),
            metrics.TopKCategoricalAccuracy(2),
            metrics.CategoricalCrossentropy(),
            metrics.CategoricalHinge(),
            metrics.KLDivergence(),
            metrics.F1Score(average="macro"),
            metrics.FBetaScore(beta=2.0),  # one number a class
            metrics.OneHotIoU(3, [0, 2]),
            metrics.OneHotMeanIoU(3),
        ],
    )
    return model


def batch_normalization():
    """Every replica normalizes with the statistics of its own part of a batch, in Keras too."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(momentum=0.8),
            layers.Activation("relu"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile(
        optimizers.RMSprop(0.01, momentum=0.5, centered=True), "categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def segmentation():
    """Down and up again; a label for each pixel."""
    inputs = keras.Input((8, 8, 1))
    down = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(inputs)
    up = layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu")(down)
    up = layers.Concatenate()([up, inputs])
    model = keras.Model(inputs, layers.Conv2D(2, 1, activation="softmax")(up))
    model.compile(
        optimizers.Adamax(0.03),
        "sparse_categorical_crossentropy",
        metrics=[
            metrics.SparseCategoricalAccuracy(),
            metrics.IoU(2, [1], sparse_y_pred=False),
            metrics.MeanIoU(2, sparse_y_pred=False),
        ],
    )
    return model


def segmentation_data():
    x = _random(3).random((21, 8, 8, 1)).astype(np.float32)
    return x, (x[..., 0] > 0.6).astype(np.int32)


# Sequences -----------------------------------------------------------------------------------------------------


def tokens(rows, length=9, vocabulary=20):
    """i32[rows, length]: sentences of 2 to `length` words, filled up with 0."""
    random = _random(2)
    words = random.integers(1, vocabulary, (rows, length))
    return np.where(np.arange(length) < random.integers(2, length + 1, (rows, 1)), words, 0).astype(np.int32)


def lstm():
    """Reads sentences of different lengths. AdamW decays all but the embedding."""
    model = keras.Sequential(
        [keras.Input((9,), dtype="int32"), layers.Embedding(20, 6, mask_zero=True), layers.LSTM(6), layers.Dense(1)]
    )
    model.add(layers.Activation("sigmoid"))
    optimizer = optimizers.AdamW(0.02, weight_decay=0.05)
    optimizer.exclude_from_weight_decay(var_names=["embeddings"])
    model.compile(
        optimizer,
        "binary_crossentropy",
        metrics=[
            metrics.AUC(name="roc"),
            metrics.AUC(50, curve="PR", name="pr"),
            metrics.Precision(),
            metrics.Recall(),
            metrics.TruePositives(name="tp"),
            metrics.TrueNegatives(name="tn"),
            metrics.FalsePositives(name="fp"),
            metrics.FalseNegatives(name="fn"),
        ],
    )
    return model


def lstm_data():
    x = tokens(53)
    return x, (x[:, :2].sum(1) % 2).astype(np.float32)[:, None]


def gru():
    model = keras.Sequential([keras.Input((6, 3)), layers.GRU(4), layers.Dense(4), layers.Reshape((2, 2))])
    model.compile(
        optimizers.RMSprop(schedules.ExponentialDecay(0.03, 20, 0.7)),
        "mse",
        metrics=["mae", metrics.RootMeanSquaredError(), metrics.PearsonCorrelation(), metrics.ConcordanceCorrelation()],
    )
    return model


def gru_data():
    x = _random(4).normal(size=(37, 6, 3)).astype(np.float32)
    return x, x[:, -2:, :2].cumsum(1)


def tagger():
    """A label for each word; the mask of the embedding reaches the loss, which is the mean over what is a word."""
    model = keras.Sequential(
        [
            keras.Input((9,), dtype="int32"),
            layers.Embedding(20, 6, mask_zero=True),
            layers.Dense(6, "tanh"),
            layers.TimeDistributed(layers.Dense(3)),
        ]
    )
    model.compile(
        optimizers.Adam(0.01), losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=["accuracy"]
    )
    return model


def tagger_data():
    x = tokens(37)
    return x, x % 3


def transformer():
    """One block: attention, residuals, layer normalization; predicts the next token."""
    inputs = keras.Input((7,), dtype="int32")
    places = layers.Embedding(7, 8)(ops.arange(7))
    x = layers.Embedding(20, 8)(inputs) + places
    y = layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(x + y)
    y = layers.Dense(8)(layers.Dense(16, "gelu")(x))
    x = layers.LayerNormalization()(x + y)
    model = keras.Model(inputs, layers.Dense(20)(x))
    model.compile(
        optimizers.Lamb(schedules.CosineDecay(0.001, 60, warmup_target=0.05, warmup_steps=2)),
        losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def transformer_data():
    x = ((_random(5).integers(0, 20, (37, 1)) + 3 * np.arange(8)) % 20).astype(np.int32)
    return x[:, :-1], x[:, 1:]


WORDS = ["red", "green", "blue", "cat", "dog", "bird", "runs", "sleeps"]


def texts(rows=45):
    return np.array([" ".join(_random(100 + i).choice(WORDS, 5)) for i in range(rows)])


def _vectorize(dataset):
    """The text becomes numbers in the pipeline, by a layer with a table of words."""
    vectorize = layers.TextVectorization(output_sequence_length=6, vocabulary=WORDS)
    return dataset.map(lambda x, y: (vectorize(x), y))


def text():
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int64"),
            layers.Embedding(12, 5),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(
        optimizers.Ftrl(1.0, l1_regularization_strength=0.001),
        losses.BinaryFocalCrossentropy(),
        metrics=[
            metrics.PrecisionAtRecall(0.5),
            metrics.RecallAtPrecision(0.5),
            metrics.SensitivityAtSpecificity(0.5),
            metrics.SpecificityAtSensitivity(0.5),
        ],
    )
    return model


def text_data():
    x = texts()
    return x, np.array([[float("cat" in row)] for row in x], np.float32)


# Several inputs and outputs ------------------------------------------------------------------------------------


def two_tower():
    """Users and items meet in a product; a dict of inputs, gradients of the rows that were looked up."""
    user, item = keras.Input((), name="user", dtype="int32"), keras.Input((), name="item", dtype="int32")
    towers = [
        layers.Dense(4, name=f"{name}_tower")(layers.Embedding(count, 4, "glorot_normal", name=f"{name}_table")(one))
        for name, one, count in (("user", user, 12), ("item", item, 9))
    ]
    model = keras.Model({"user": user, "item": item}, layers.Dot(1)(towers))
    model.compile(
        optimizers.Adadelta(1.0, epsilon=1e-4),
        "mean_squared_error",
        metrics=[metrics.R2Score(), metrics.MeanSquaredError()],
    )
    return model


def two_tower_data():
    random = _random(6)
    user, item = random.integers(0, 12, 61), random.integers(0, 9, 61)
    rating = np.cos(user) * np.sin(item)
    return {"user": user.astype(np.int32), "item": item.astype(np.int32)}, rating.astype(np.float32)[:, None]


def heads():
    """Three outputs in a dict: two with a loss and a weight, one that is only measured."""
    inputs = keras.Input((10,))
    x = layers.Dense(8, "relu")(inputs)
    kind = layers.Dense(3, "softmax", name="kind")(x)
    outputs = {
        "kind": kind,
        "size": layers.Dense(1, name="size")(x),
        "best": ops.cast(ops.argmax(kind, axis=-1), "float32"),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizers.Lion(1e-2),
        loss={"kind": "sparse_categorical_crossentropy", "size": losses.LogCosh(), "best": None},
        loss_weights={"kind": 1.0, "size": 0.3, "best": None},
        metrics={"kind": ["accuracy"], "size": ["mae"], "best": [metrics.Accuracy(), metrics.MeanIoU(3)]},
    )
    return model


def heads_data():
    x = _rows(45, 10)
    kind = _labels(x, 3)
    return x, {"kind": kind, "size": x[:, :1] ** 2, "best": kind.astype(np.float32)}


def weighted_heads():
    """Outputs in a list, with a weight for each example and output."""
    inputs = keras.Input((10,))
    x = layers.Dense(8, "relu")(inputs)
    model = keras.Model(inputs, [layers.Dense(1, name="a")(x), layers.Dense(3, "softmax", name="b")(x)])
    model.compile(
        optimizers.Adam(0.01),
        loss=["mse", "sparse_categorical_crossentropy"],
        loss_weights=[0.5, 2.0],
        metrics=[["mae"], ["accuracy"]],
        weighted_metrics=[["mse"], [metrics.SparseCategoricalAccuracy(name="weighted")]],
    )
    return model


def weighted_heads_data():
    x = _rows(45, 10)
    weights = _random(8).random((2, 45)).astype(np.float32)
    return x, (x[:, :1], _labels(x, 3)), (weights[0], weights[1])


def tabular():
    """Columns of a table; preprocessing is part of the model."""
    age = keras.Input((1,), name="age")
    color = keras.Input((1,), name="color", dtype="string")
    city = keras.Input((1,), name="city", dtype="string")
    count = keras.Input((1,), name="count", dtype="int32")
    normalize = layers.Normalization()
    normalize.adapt(tabular_data()[0]["age"])
    columns = [
        normalize(age),
        layers.StringLookup(vocabulary=WORDS[:3], output_mode="one_hot")(color),
        layers.CategoryEncoding(5, output_mode="multi_hot")(layers.Hashing(5)(city)),
        layers.IntegerLookup(vocabulary=[1, 2, 3], output_mode="one_hot")(count),
        layers.Discretization([20.0, 40.0, 60.0], output_mode="one_hot")(age),
    ]
    x = layers.Dense(6, "relu")(layers.Concatenate()(columns))
    inputs = {"age": age, "color": color, "city": city, "count": count}
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(x))
    model.compile(optimizers.Adafactor(0.05), "binary_crossentropy", metrics=["accuracy", metrics.AUC()])
    return model


def tabular_data():
    random = _random(9)
    x = {
        "age": random.uniform(0, 80, (45, 1)).astype(np.float32),
        "color": random.choice(WORDS[:4], (45, 1)),
        "city": random.choice(["Ulm", "Bonn", "Kiel", "Jena"], (45, 1)),
        "count": random.integers(0, 5, (45, 1)).astype(np.int32),
    }
    return x, ((x["age"] > 40) ^ (x["color"] == "red")).astype(np.float32)


# Models with parts of their own --------------------------------------------------------------------------------


class Antirectifier(layers.Layer):
    """A layer with weights and a loss of its own."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(2 * shape[-1], shape[-1]), initializer="glorot_uniform", name="kernel")

    def call(self, x):
        x = x - ops.mean(x, axis=-1, keepdims=True)
        y = ops.concatenate([ops.relu(x), ops.relu(-x)], axis=-1) @ self.kernel
        self.add_loss(0.01 * ops.mean(ops.square(y)))
        return y


def contrast(y, y_pred):
    """A loss of the user's own: one value an example."""
    return ops.mean(ops.log1p(ops.square(y - y_pred)), axis=-1)


def close(y, y_pred):
    """A metric that is a plain function."""
    return ops.cast(ops.abs(y - y_pred) < 0.5, "float32")


class Largest(metrics.Metric):
    """A metric of the user's own: sums of two columns."""

    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable((2,), "zeros", name="total")

    def update_state(self, y, y_pred, sample_weight=None):
        self.total.assign_add(ops.stack([ops.sum(ops.maximum(y, y_pred)), ops.sum(ops.ones_like(y_pred))]))

    def result(self):
        return self.total[0] / ops.maximum(self.total[1], 1.0)


class Own(keras.Model):
    """Subclassed, with layers that are built when the model is first called."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(6)
        self.middle = Antirectifier()
        self.last = layers.Dense(1)

    def call(self, x):
        return self.last(self.middle(self.first(x)))


def subclassed():
    model = Own()
    model.compile(optimizers.SGD(0.02, momentum=0.9), contrast, metrics=[close, Largest()])
    return model


def regression_data():
    x = _rows(45, 10)
    return x, (x[:, :2].sum(1, keepdims=True)).astype(np.float32)


def measured():
    model = keras.Sequential([keras.Input((10,)), layers.Dense(6, "tanh"), Measures(), layers.Dense(1)])
    model.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


class OwnLoss(keras.Model):
    """Overrides `compute_loss`, and holds a metric that it updates there, as Keras's guide shows."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.distance = metrics.Mean(name="distance")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training=training)
        self.distance.update_state(ops.abs(y - y_pred))
        return 2.0 * loss


def own_loss():
    inputs = keras.Input((10,))
    model = OwnLoss(inputs, layers.Dense(1)(layers.Dense(6, "tanh")(inputs)))
    model.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


class OwnLogs(keras.Sequential):
    """Overrides `get_metrics_result`: logs what it makes of its metrics as well."""

    def get_metrics_result(self):
        logs = super().get_metrics_result()
        return {**logs, "perplexity": ops.exp(logs["loss"])}


def own_logs():
    model = OwnLogs([keras.Input((10,)), layers.Dense(6, "tanh"), layers.Dense(1)])
    model.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


class OwnStep(keras.Model):
    """Overrides `train_step`."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        variables = [v.value for v in self.trainable_variables]
        self.optimizer.apply([2.0 * g for g in tape.gradient(loss, variables)], self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(losses.mean_squared_error(y, y_pred))
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


def overridden_step():
    inputs = keras.Input((10,))
    model = OwnStep(inputs, layers.Dense(1)(layers.Dense(6, "tanh")(inputs)))
    model.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


# What compile and the optimizers can be told -------------------------------------------------------------------


def _small(optimizer, loss="mse", *, dtype=None, activation="tanh", **compiled):
    """10 -> 6 -> 1."""
    model = keras.Sequential(
        [keras.Input((10,)), layers.Dense(6, activation, dtype=dtype), layers.Dense(1, dtype=dtype)]
    )
    model.compile(optimizer, loss, **({"metrics": ["mae"]} | compiled))
    return model


def sample_weights():
    model = keras.Sequential([keras.Input((10,)), layers.Dense(6, "tanh"), layers.Dense(1, "softplus")])
    weighted = ["mse", metrics.MeanAbsoluteError(name="weighted")]
    model.compile(optimizers.SGD(0.05), "poisson", metrics=[metrics.Poisson()], weighted_metrics=weighted)
    return model


def sample_weights_data():
    x = _rows(45, 10)
    return x, np.abs(x[:, :1]), (np.arange(45) % 3).astype(np.float32)


def class_weights():
    model = keras.Sequential([keras.Input((10,)), layers.Dense(4, "softmax")])
    model.compile(
        optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"]
    )
    return model


def frozen():
    """A base that was trained elsewhere keeps its weights and its statistics."""
    base = keras.Sequential([keras.Input((10,)), layers.Dense(6), layers.BatchNormalization()], name="base")
    base.trainable = False
    model = keras.Sequential([keras.Input((10,)), base, layers.Dense(1, name="top")])
    model.compile(optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def averaged():
    return _small(optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8))


def averaged_often():
    return _small(optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2))


def clipped():
    """A norm over all gradients, once a fixed factor of the loss is out of them."""
    return _small(optimizers.SGD(0.5, global_clipnorm=0.3, loss_scale_factor=128.0))


def clipped_each():
    return _small(optimizers.SGD(0.5, clipnorm=0.2), metrics=[metrics.CosineSimilarity(), metrics.MeanSquaredError()])


def accumulated():
    """An update every second batch, clipped when it is made."""
    return _small(optimizers.Adam(0.02, clipnorm=0.2, gradient_accumulation_steps=2))


def constrained():
    """Gradients within bounds, and weights too."""
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(6, "tanh", kernel_constraint=keras.constraints.MaxNorm(0.8)),
            layers.Dense(1, kernel_constraint="non_neg"),
        ]
    )
    schedule = schedules.PiecewiseConstantDecay([3], [0.5, 0.1])
    model.compile(optimizers.SGD(schedule, clipvalue=0.05), "mse", metrics=["mae"])
    return model


def scaled():
    return _small(optimizers.LossScaleOptimizer(optimizers.SGD(0.05), initial_scale=64.0, dynamic_growth_steps=2))


def schedule_free():
    model = _small(optimizers.ScheduleFreeAdamW(0.02, warmup_steps=2))
    # Keras gives other numbers when `fit` builds this optimizer, inside of its first traced step: what `build` copies
    # from the weights is then lost.
    model.optimizer.build(model.trainable_variables)
    return model


def several_optimizers():
    first, other = optimizers.SGD(0.05), optimizers.Adam(0.01)
    return _small(optimizers.MultiOptimizer(lambda variable: first if "bias" in variable.path else other))


class Counter(optimizers.Optimizer):
    """Adds 1 to each weight, with much time between reading and writing it."""

    def update_step(self, gradient, variable, learning_rate):
        old = tf.convert_to_tensor(variable)
        matrix = tf.fill([300, 300], 1e-9 * old)
        for _ in range(20):
            matrix = matrix @ matrix
        self.assign(variable, old + 1.0 + 0.0 * matrix[0, 0])


class Ignored(layers.Layer):
    """Has a weight, which makes no difference."""

    def build(self, shape):
        self.weight = self.add_weight(shape=(), initializer="zeros")

    def call(self, inputs):
        return inputs + 0.0 * self.weight


def counted():
    """What several workers do to the same weight at once must all be there."""
    model = keras.Sequential([keras.Input((12,)), Ignored()])
    model.compile(Counter(0.1), "mse", metrics=["mae"])
    return model


def summed():
    """The sum over the examples; and no metrics."""
    return _small(optimizers.SGD(0.005), losses.MeanSquaredError(reduction="sum"), metrics=None)


def unreduced():
    """A loss for each example: the gradient is that of their sum."""
    return _small(optimizers.SGD(0.005), losses.MeanSquaredError(reduction=None))


def weighted_mean():
    """The mean over the weights of the examples instead of their number."""
    return _small(
        optimizers.SGD(0.05), losses.MeanSquaredError(reduction="mean_with_sample_weight"), weighted_metrics=["mae"]
    )


def dropout():
    model = keras.Sequential(
        [keras.Input((10,)), layers.GaussianNoise(0.1), layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(4)]
    )
    model.compile(optimizers.Adam(0.02), losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def bfloat16():
    return _small(optimizers.SGD(0.05), dtype="mixed_bfloat16")


def float16():
    return _small(optimizers.LossScaleOptimizer(optimizers.SGD(0.05)), dtype="mixed_float16")


def xla():
    return _small(optimizers.Adam(0.01), jit_compile=True)


_ROUNDING = "16-bit sums are rounded in another order"
_TURNS = "workers do not take turns"
_RANDOM = "each replica draws random numbers of its own"
_STATISTICS = "each replica normalizes by its own part of the batch"
_OVERFLOWS = "a part's gradients are smaller and overflow later, so other steps are skipped"
_SAME_16 = Equal(1e-2, 1e-3)
_NO_XLA = Refused("jit_compile")
_NO_SUMS = Refused("gradient_accumulation_steps")  # of several workers in the same variables
# Of 45 examples four that are near the border are a fifth of the way; of 24 negatives one.
_NO_ACCURACY = Band(_TURNS, aside=("accuracy",))
_NO_COUNTS = Band(_TURNS, aside=("fp", "tn"))

CASES = {
    "mlp": Case(mlp, mlp_data, validate=True),
    "selu": Case(selu, selu_data),
    "autoencoder": Case(autoencoder, autoencoder_data, dataset=lambda d: d),
    "hinge": Case(hinge, hinge_data, needs="Muon"),
    "convnet": Case(convnet, images, band_epochs=25),
    "batch_normalization": Case(batch_normalization, images, replicas=Band(_STATISTICS), band_epochs=6),
    "segmentation": Case(segmentation, segmentation_data, batch=8),
    "lstm": Case(lstm, lstm_data, band_epochs=15, asynchronous=_NO_COUNTS),
    "gru": Case(gru, gru_data, dataset=lambda d: d, band_epochs=8),
    "tagger": Case(tagger, tagger_data),
    "transformer": Case(transformer, transformer_data),
    "text": Case(text, text_data, dataset=_vectorize, band_epochs=20),
    "two_tower": Case(two_tower, two_tower_data, band_epochs=6),
    "heads": Case(heads, heads_data, validate=True, band_epochs=20),
    "weighted_heads": Case(weighted_heads, weighted_heads_data),
    "tabular": Case(tabular, tabular_data, band_epochs=14, asynchronous=_NO_ACCURACY),
    "subclassed": Case(subclassed, regression_data),
    "measured": Case(measured, regression_data, validate=True, band_epochs=2),
    "own_loss": Case(own_loss, regression_data, band_epochs=2),
    "own_logs": Case(
        own_logs,
        regression_data,
        validate=True,
        band_epochs=2,
        asynchronous=Band(_TURNS, aside=("perplexity", "val_perplexity")),
    ),
    "overridden_step": Case(overridden_step, regression_data, band_epochs=2),
    "sample_weights": Case(sample_weights, sample_weights_data),
    "class_weights": Case(
        class_weights, mlp_data, fit={"class_weight": {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.5}}, band_epochs=6
    ),
    "frozen": Case(frozen, regression_data, untouched=("base",)),
    "averaged": Case(averaged, regression_data, band_epochs=5),
    "averaged_often": Case(averaged_often, regression_data, band_epochs=4),
    "clipped": Case(clipped, regression_data, band_epochs=2),
    "clipped_each": Case(clipped_each, regression_data, band_epochs=2),
    "accumulated": Case(accumulated, regression_data, asynchronous=_NO_SUMS),
    "constrained": Case(constrained, regression_data, band_epochs=2),
    "scaled": Case(scaled, regression_data, band_epochs=2),
    "schedule_free": Case(schedule_free, regression_data, needs="ScheduleFreeAdamW"),
    "counted": Case(counted, autoencoder_data, batch=2, asynchronous=Equal()),
    "several_optimizers": Case(several_optimizers, regression_data, needs="MultiOptimizer"),
    "summed": Case(summed, regression_data, band_epochs=2),
    "unreduced": Case(unreduced, regression_data, band_epochs=2),
    "weighted_mean": Case(weighted_mean, sample_weights_data, band_epochs=2),
    "dropout": Case(dropout, mlp_data, replicas=Band(_RANDOM), asynchronous=Band(_RANDOM)),
    "bfloat16": Case(bfloat16, regression_data, alone=_SAME_16, replicas=Band(_ROUNDING, 0.05), band_epochs=2),
    "float16": Case(  # one update more is a fifth of the way
        float16,
        regression_data,
        alone=_SAME_16,
        replicas=Band(_OVERFLOWS, 0.3),
        asynchronous=Band(_OVERFLOWS, 0.3),
        skips=True,
        band_epochs=2,
    ),
    "xla": Case(xla, regression_data, where={"central": _NO_XLA, "ps": _NO_XLA}),
}
CASES = {name: case for name, case in CASES.items() if not case.needs or hasattr(optimizers, case.needs)}
SAVED = ("convnet", "lstm", "two_tower", "tabular", "transformer")  # saved, exported and loaded again
