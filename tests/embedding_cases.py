"""A model of tables whose rows are looked up, each with an optimizer of its own, and what training makes of it."""

import contextlib
import functools

import keras
import numpy as np
import tensorflow as tf

WORDS, LENGTH, WIDTH = 7, 5, 2
OPTIMIZERS = {
    "adagrad": (keras.optimizers.Adagrad, {"learning_rate": 0.1}),
    "adam": (keras.optimizers.Adam, {"learning_rate": 0.05}),
    "rmsprop": (keras.optimizers.RMSprop, {"learning_rate": 0.05}),
}
AVERAGED = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 3}
OPTIONS = {
    "clipnorm, weight_decay": {"clipnorm": 0.03, "weight_decay": 0.02},
    "accumulation, global_clipnorm, averages": {"gradient_accumulation_steps": 2, "global_clipnorm": 0.03, **AVERAGED},
    "loss scale, averages": AVERAGED,  # begins with gradients that overflow
    "loss scale, accumulation": {"clipvalue": 0.01, "gradient_accumulation_steps": 2},
}


def data():
    """Batches of different lengths; the last holds two rows, fewer than three replicas."""
    random = np.random.default_rng(0)
    sizes = (8, 5), (8, 3), (8, 5), (2, 4)
    batches = [(random.integers(0, WORDS, s), 10 * random.random((s[0], 1), np.float32)) for s in sizes]
    return functools.reduce(lambda a, b: a.concatenate(b), map(tf.data.Dataset.from_tensors, batches))


class TableOfWords(keras.layers.Layer):
    """The mean of what two tables have of the words, and of their positions."""

    def build(self, shape):
        self.words = self.add_weight([WORDS, WIDTH], keras.initializers.RandomUniform(seed=1), constraint="unit_norm")
        self.positions = self.add_weight([LENGTH, WIDTH], keras.initializers.RandomUniform(seed=2))
        self.starts = self.add_weight([LENGTH, WIDTH], keras.initializers.RandomUniform(seed=3))

    def call(self, x):
        # Twice, of any number, and twice of a fixed one: one device has a row of its gradient for each.
        positions = keras.ops.take(self.positions, keras.ops.arange(keras.ops.shape(x)[1]), axis=0)
        reverse = keras.ops.take(self.positions, keras.ops.arange(keras.ops.shape(x)[1])[::-1], axis=0)
        found = keras.ops.take(self.words, x, axis=0) + positions + keras.ops.square(reverse)
        first = sum(keras.ops.take(self.starts, keras.ops.arange(2), axis=0) for _ in range(2))
        return keras.ops.mean(found, axis=1) * (1 + keras.ops.sum(first * keras.ops.ones((2, 1)), axis=0))


class Largest(keras.layers.Layer):
    """Keeps the largest mean of a row of the last batch in a variable, by its gradient, as layers in float8 do."""

    def build(self, shape):
        self.largest = self.add_weight([1], "zeros")
        self.largest.overwrite_with_gradient = True

    def call(self, x):
        @keras.ops.custom_gradient
        def keep(x, largest):
            return x + 0 * largest, lambda upstream: (upstream, keras.ops.max(x, axis=0))

        return keep(keras.ops.mean(keras.ops.cast(x, "float32"), axis=1, keepdims=True), self.largest)


def model(options):
    """Tables side by side, each with its optimizer; no number of one depends on another's."""
    made = {name: make(**given, **OPTIONS[options]) for name, (make, given) in OPTIMIZERS.items()}
    accumulation = OPTIONS[options].get("gradient_accumulation_steps")
    made["largest"] = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulation)
    x = keras.Input([None], dtype="int32")
    tables = [TableOfWords(name=name)(x) for name in OPTIMIZERS]
    model = keras.Model(x, keras.layers.Concatenate()([*tables, Largest(name="largest")(x)]))
    optimizer = keras.optimizers.MultiOptimizer(lambda variable: made[variable.path.split("/")[0]])
    if options.startswith("loss scale"):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**127, dynamic_growth_steps=3)
    model.compile(optimizer, "mse", jit_compile=False)  # compiling takes XLA longer than all else
    optimizer.build(model.trainable_variables)  # its variables have other paths if they are made while tracing
    return model


def trained(options, fit, scope):
    """The losses of the epochs, and the values of weights and optimizers by path."""
    keras.backend.clear_session(free_memory=False)
    with scope:
        keras.utils.set_random_seed(1)
        made = model(options)
    history = fit(made, data(), epochs=4, verbose=0).history
    values = {v.path: keras.ops.convert_to_numpy(v) for v in [*made.variables, *made.optimizer.variables]}
    return {"loss": np.asarray(history["loss"]), **values}


@functools.cache
def by_keras(options):
    """Keras's own training on one device."""
    return trained(options, keras.Model.fit, contextlib.nullcontext())


def check(options, ours):
    """Compares a training with Keras's own."""
    assert set(ours) == set(by_keras(options))
    for path, value in by_keras(options).items():
        np.testing.assert_allclose(ours[path], value, 1e-3, 1e-4, err_msg=path)
