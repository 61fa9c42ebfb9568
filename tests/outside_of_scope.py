"""Models that are made, and begin to train, outside of every scope, and then train on a strategy."""

import keras
import numpy as np
import tensorflow as tf

from tests.models import classifier, data, weights

BATCH = 16


def _weight_decay():
    optimizer = keras.optimizers.AdamW(0.02, weight_decay=0.2)
    model = classifier(optimizer)
    optimizer.exclude_from_weight_decay([model.trainable_variables[0]], ["bias"])
    return model


def _two_optimizers():
    kernels, rest = keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.1, momentum=0.9)
    return classifier(keras.optimizers.MultiOptimizer(lambda v: kernels if "kernel" in v.path else rest))


def _sentences():
    """Sentences string[n, 1] of three words, of which one is in no vocabulary, and the labels i64[n]."""
    x, y = data()
    words = np.array(["red", "green", "blue", "odd"])
    found = words[np.clip(np.round(x[:, :3] + 1.5), 0, 3).astype(int)]
    return tf.constant([[" ".join(row)] for row in found]), y


def _of_text():
    """Lookup tables in a layer, and in a layer inside of one."""
    sentences = keras.Input((1,), dtype="string")
    text = keras.layers.TextVectorization(vocabulary=["red", "green"], output_sequence_length=3)(sentences)
    whole = keras.layers.StringLookup(vocabulary=["red red red", "green blue red"], output_mode="one_hot")(sentences)
    begin = {n: keras.initializers.GlorotUniform(seed=n) for n in (1, 2)}
    vectors = keras.layers.Flatten()(keras.layers.Embedding(4, 5, embeddings_initializer=begin[1])(text))
    features = keras.layers.concatenate([vectors, whole])
    model = keras.Model(sentences, keras.layers.Dense(3, kernel_initializer=begin[2])(features))
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


DATA = {"tables": _sentences}
CASES = {
    "tables": _of_text,
    "statistics": lambda: classifier(
        keras.optimizers.Adam(0.02), keras.layers.BatchNormalization(synchronized=True, momentum=0.8)
    ),
    "averages": lambda: classifier(keras.optimizers.RMSprop(0.02, use_ema=True, ema_momentum=0.8)),
    "weight decay": _weight_decay,
    "loss scale": lambda: classifier(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adagrad(0.1))),
    "two optimizers": _two_optimizers,
}


def trained(name, by, *, before=True):
    """Trains for an epoch by plain Keras, if `before`, and for another one by `by.fit`, of `keras.Model` or `tf2dist`.

    Returns every variable that training changes, the history of the second, and what the model then predicts.
    """
    model, (x, y) = CASES[name](), DATA.get(name, data)()
    if before:
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    history = by.fit(model, x, y, batch_size=BATCH, shuffle=False, verbose=0).history
    optimizer = [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables]
    return [*weights(model), *optimizer], history, np.asarray(by.predict(model, x, verbose=0))


def assert_same(found, expected):
    for ours, theirs in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert found[1].keys() == expected[1].keys()
    for key, values in expected[1].items():
        np.testing.assert_allclose(found[1][key], values, rtol=1e-4, err_msg=key)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-4, atol=1e-5)
