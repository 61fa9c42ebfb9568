"""Models that are made, and begin to train, outside of every scope, and then train on a strategy."""

import keras
import numpy as np

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


CASES = {
    "statistics": lambda: classifier(
        keras.optimizers.Adam(0.02), keras.layers.BatchNormalization(synchronized=True, momentum=0.8)
    ),
    "averages": lambda: classifier(keras.optimizers.RMSprop(0.02, use_ema=True, ema_momentum=0.8)),
    "weight decay": _weight_decay,
    "loss scale": lambda: classifier(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adagrad(0.1))),
    "two optimizers": _two_optimizers,
}


def trained(name, by):
    """Trains for an epoch by plain Keras, and for another one by `by.fit`, of `keras.Model` or `tf2dist`.

    Returns every variable that training changes, the history of the second, and what the model then predicts.
    """
    model, (x, y) = CASES[name](), data()
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
