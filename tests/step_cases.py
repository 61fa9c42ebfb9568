"""Programs with a loop of their own, of which `tf2dist.step` and Keras's `train_on_batch` come to the same numbers."""

import keras
import numpy as np

from tests import custom_step_cases
from tests.models import OPTIMIZERS, ROWS, classifier, data, embedder, sentences

BATCH = 16


def batches(*arrays):
    """Of 16 rows; of 103 the last one has 7."""
    return [tuple(a[i : i + BATCH] for a in arrays) for i in range(0, len(arrays[0]), BATCH)]


def weighted():
    x, y = data()
    return batches(x, y, np.linspace(0.0, 2.0, ROWS, dtype=np.float32))


def of_several_lengths():
    """Sentences, each batch shorter than the one before it."""
    words, y = sentences()
    return [(x[:, : 6 - number % 3], y) for number, (x, y) in enumerate(batches(words, y))]


def reader():
    """As `embedder`, of sentences of any length."""
    table = keras.initializers.Constant(np.random.default_rng(0).normal(size=(50, 4)))
    dense = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int64"),
            keras.layers.Embedding(50, 4, table),
            keras.layers.GlobalMaxPooling1D(),
            dense,
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return model


def in_dictionaries():
    return [({"left": x[:, :5], "right": x[:, 5:]}, {"sum": y}) for x, y in batches(*data())]


def of_dictionaries():
    left, right = keras.Input((5,), name="left"), keras.Input((7,), name="right")
    dense = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=2), name="sum")
    model = keras.Model({"left": left, "right": right}, {"sum": dense(keras.layers.Concatenate()([left, right]))})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", {"sum": loss}, metrics={"sum": ["accuracy"]})
    return model


CASES = {
    "adam": (lambda: classifier(OPTIMIZERS["adam"]()), lambda: batches(*data())),
    "sample weights": (lambda: classifier(OPTIMIZERS["momentum"]()), weighted),
    "embedding": (lambda: embedder(OPTIMIZERS["adagrad"]()), lambda: batches(*sentences())),
    "several lengths": (reader, of_several_lengths),
    "dictionaries": (of_dictionaries, in_dictionaries),
    "own step": (
        custom_step_cases.CASES["other names"][0],
        lambda: batches(*custom_step_cases.CASES["other names"][1]),
    ),
}


def trained(step, given):
    """The logs of each call in two epochs."""
    return [{name: float(value) for name, value in step(*batch).items()} for _ in range(2) for batch in given]
