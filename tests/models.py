"""Small models and data for tests, the same in every process that makes them."""

import keras
import numpy as np

ROWS, FEATURES, CLASSES = 103, 12, 3  # 103 rows: with batches of 16 the last one holds 7, which no 2 divides


TABLE_OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.3),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.02),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.02),
}  # of tables whose rows are looked up


@keras.saving.register_keras_serializable("tests")
class Measures(keras.layers.Layer):
    """Measures what goes through it, with metrics that it holds."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.activity = keras.metrics.Mean(name="activity")
        self.cells = keras.metrics.Sum(name="cells")

    def call(self, x):
        self.activity.update_state(keras.ops.abs(x))
        self.cells.update_state(keras.ops.ones_like(x))
        return x


def data(seed=0):
    """x f32[103, 12], y i64[103]: learnable."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, FEATURES)).astype(np.float32)
    y = np.argmax(x @ random.normal(size=(FEATURES, CLASSES)), axis=1)
    return x, y


def classifier(optimizer, *extra, regularizer=None):
    """12 -> 8 tanh -> 3, compiled, with seeded weights."""
    initializers = [keras.initializers.GlorotUniform(seed=i) for i in range(2)]
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(8, "tanh", kernel_initializer=initializers[0], kernel_regularizer=regularizer),
            *extra,
            keras.layers.Dense(CLASSES, kernel_initializer=initializers[1]),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def with_losses_of_layers():
    """A classifier whose loss has terms of its layers' weights and outputs, and whose layers hold statistics."""
    extra = keras.layers.BatchNormalization(), keras.layers.ActivityRegularization(l2=0.05)
    return classifier(keras.optimizers.SGD(0.1), *extra, regularizer="l2")


def weighted():
    """A model whose loss is a mean over sample weights, and what it is trained on: without weights, with, without."""
    model = classifier(keras.optimizers.SGD(0.1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.SGD(0.1), loss)
    rows = data()
    return model, [rows, (*rows, np.linspace(0.0, 2.0, ROWS, dtype=np.float32)), rows]


def weights(model):
    """The trained weights as one list of arrays."""
    return [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]


def same_weights(ours, theirs):
    """Asserts that two models have the same trained weights."""
    for a, b in zip(weights(ours), weights(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
}

WORDS, LENGTH = 50, 6


def sentences(seed=0):
    """words i64[103, 6], y i64[103]."""
    random = np.random.default_rng(seed)
    words = random.integers(0, WORDS, (ROWS, LENGTH))
    return words, words.sum(axis=1) % CLASSES


def embedder(optimizer, embedding=keras.layers.Embedding):
    """Words -> embedding -> mean -> 3, compiled, with seeded weights; its table has sparse gradients."""
    table = keras.initializers.Constant(np.random.default_rng(0).normal(size=(WORDS, 4)))
    kernel = keras.initializers.GlorotUniform(seed=1)
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int64"),
            embedding(WORDS, 4, embeddings_initializer=table),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(CLASSES, kernel_initializer=kernel),
        ]
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model
