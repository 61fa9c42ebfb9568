"""Models that under parameter servers must come to the numbers of `keras.Model.fit` on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

import tf2dist
from tests.models import classifier, data, embedder, sentences

BATCH, EPOCHS = 16, 2
optimizers, layers = keras.optimizers, keras.layers


SYNC, ASYNC, LOCAL = ("sync", 1), ("async", 1), ("async", 3)  # the kind of update, and local steps


@dataclass(frozen=True)
class Case:
    """A model, its data, and how it is trained."""

    build: Callable[[], keras.Model]
    data: Callable[[], tuple] = data
    options: tuple[tuple[str, int], ...] = (SYNC, ASYNC, LOCAL)


class CountsSteps(layers.Layer):
    """Counts the batches that it has seen in training, as an integer and as a float."""

    def build(self, input_shape):
        made = {"initializer": "zeros", "shape": (), "trainable": False}
        self.steps = self.add_weight(name="steps", dtype="int32", **made)
        self.halves = self.add_weight(name="halves", **made)

    def call(self, inputs, training=False):
        if training:
            self.steps.assign_add(1)
            self.halves.assign_add(0.5)
        return inputs


class OwnFunction(layers.Layer):
    """Computes in a function that is traced once, whatever a step makes of the weights."""

    def build(self, input_shape):
        self.kernel = self.add_weight(name="kernel", shape=(input_shape[-1],) * 2, initializer=_nearly(0.9))
        self.scale = self.add_weight(name="scale", shape=(input_shape[-1],), initializer="ones")

    @tf.function
    def call(self, inputs):
        return self.scale * tf.tanh(tf.matmul(inputs, self.kernel))


class ComputedAgain(layers.Layer):
    """Keeps little for the backward pass; a weight is used elsewhere too, or not at all, which hides nothing."""

    def build(self, input_shape):
        shape = (input_shape[-1],) * 2
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=_nearly(0.8), regularizer="l2")
        self.twice = self.add_weight(name="twice", shape=shape, initializer=_nearly(0.9))
        self.unused = self.add_weight(name="unused", shape=(2,), initializer="ones")

    def call(self, inputs):
        again = tf.recompute_grad(lambda x: tf.tanh(tf.matmul(x, self.kernel @ self.twice)))(inputs)
        return again + 0.1 * tf.matmul(inputs, self.twice)


def _nearly(gain):
    return keras.initializers.Identity(gain)


def dense(optimizer, *extra):
    return lambda: classifier(optimizer(), *[layer() for layer in extra])


# Two layers that write statistics and states of random numbers in each step.
_normalized = layers.BatchNormalization, lambda: layers.Dropout(0.3, seed=5), CountsSteps, layers.BatchNormalization


def _frozen_in_part(optimizer):
    """One normalization has other statistics than at the beginning and keeps them."""
    frozen = layers.BatchNormalization(moving_mean_initializer=_filled(0.1), moving_variance_initializer=_filled(0.5))
    frozen.trainable = False
    return classifier(optimizer, frozen, layers.LayerNormalization())


def _filled(value):
    return keras.initializers.Constant(value)


def spectral(shared=False):
    """Layers that write their kernels, which are trained, while the model is called; one of them maybe twice."""
    inner = layers.Dense(8, kernel_initializer=keras.initializers.GlorotUniform(seed=3))
    norm = layers.SpectralNormalization(inner)
    inputs = keras.Input((8,))
    x = norm(inputs)
    x = layers.Add()([norm(x), x]) if shared else x
    model = classifier(optimizers.SGD(0.1), keras.Model(inputs, layers.Activation("tanh")(x)))
    norm.vector_u.assign(np.linspace(0.1, 0.8, 8)[None])
    return model


def multi():
    """An optimizer that passes weights on to two others."""
    return optimizers.MultiOptimizer(_Pick())


class _Pick:
    """Adam for biases, momentum for the rest."""

    def __init__(self):
        self.kinds = optimizers.Adam(0.01), optimizers.SGD(0.05, momentum=0.9)

    def __call__(self, variable):
        return self.kinds[0 if "bias" in variable.path else 1]


def scaled(make, scale=2.0**10, growth=3):
    """Loss scaling whose scale changes in the middle of the training."""
    return lambda: optimizers.LossScaleOptimizer(make(), initial_scale=scale, dynamic_growth_steps=growth)


def words(optimizer):
    return lambda: embedder(optimizer())


KINDS = {
    "sgd": lambda **k: optimizers.SGD(0.1, **k),
    "momentum": lambda **k: optimizers.SGD(0.05, momentum=0.9, nesterov=True, **k),
    "adam": lambda **k: optimizers.Adam(0.01, **k),
    "adamw": lambda **k: optimizers.AdamW(0.01, weight_decay=0.1, **k),
    "adamax": lambda **k: optimizers.Adamax(0.01, **k),
    "nadam": lambda **k: optimizers.Nadam(0.01, **k),
    "adagrad": lambda **k: optimizers.Adagrad(0.1, **k),
    "adadelta": lambda **k: optimizers.Adadelta(1.0, **k),
    "rmsprop": lambda **k: optimizers.RMSprop(0.01, momentum=0.5, centered=True, **k),
    "ftrl": lambda **k: optimizers.Ftrl(0.1, **k),
    "lion": lambda **k: optimizers.Lion(0.001, **k),
    "adafactor": lambda **k: optimizers.Adafactor(0.05, **k),
    "lamb": lambda **k: optimizers.Lamb(0.01, **k),
    "muon": lambda **k: optimizers.Muon(0.01, **k),
}


def _with(kind, **options):
    return lambda: KINDS[kind](**options)


OPTIMIZERS = {
    **KINDS,
    "decay": _with("sgd", weight_decay=0.3),
    "decay and average": _with("adam", weight_decay=0.3, use_ema=True, ema_momentum=0.8),
    "average overwrites": _with("adam", use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3),
    "clipnorm": _with("adam", clipnorm=0.01),
    "global_clipnorm": _with("rmsprop", global_clipnorm=0.01),
    "clipvalue": _with("sgd", clipvalue=0.001),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.05, 2, 0.7)),
    "multi": multi,
    "scaled": scaled(KINDS["adam"]),
    "scaled, overflows": scaled(KINDS["adam"], 2.0**126),
    "scaled, clipnorm": scaled(_with("rmsprop", clipnorm=0.01)),
    "scaled, average overwrites": scaled(
        _with("sgd", use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3), 2.0**126
    ),
}
# What local steps make of each optimizer is tried in one process (tests/compat/test_stateless_optimizer.py).
CASES = {
    f"words, {name}": Case(words(OPTIMIZERS[name]), sentences, (SYNC,))
    for name in ("adadelta", "nadam", "ftrl", "lion", "adafactor")
}
CASES |= {
    f"words, {name}": Case(words(OPTIMIZERS[name]), sentences) for name in ("rmsprop", "clipnorm", "scaled, clipnorm")
}
CASES |= {
    f"dense, {name}": Case(dense(OPTIMIZERS[name]), options=(SYNC,))
    for name in ("decay", "decay and average", "scaled, overflows")
}
CASES |= {
    "dense, adamw": Case(dense(OPTIMIZERS["adamw"]), options=(SYNC, ASYNC)),
    "dense, average overwrites": Case(dense(OPTIMIZERS["average overwrites"])),
    "own function": Case(dense(OPTIMIZERS["adamw"], OwnFunction)),
    "computed again": Case(dense(OPTIMIZERS["adamw"], ComputedAgain)),
    "dense, multi": Case(dense(multi), options=(ASYNC, LOCAL)),
    "dense, scaled, average overwrites": Case(dense(OPTIMIZERS["scaled, average overwrites"])),
    "dense, accumulation": Case(dense(_with("adam", gradient_accumulation_steps=2)), options=(SYNC, ASYNC)),
    "constraint": Case(
        lambda: _constrained(_with("sgd", use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)()),
        options=(ASYNC, LOCAL),
    ),
    "spectral": Case(spectral),
    "spectral twice": Case(lambda: spectral(shared=True)),
    "counts": Case(dense(KINDS["sgd"], CountsSteps)),
    "normalized": Case(dense(KINDS["adam"], *_normalized), options=(ASYNC, LOCAL)),
    "normalized, scaled": Case(dense(scaled(KINDS["momentum"]), *_normalized), options=(ASYNC, LOCAL)),
    "normalized, frozen": Case(lambda: _frozen_in_part(OPTIMIZERS["adamw"]()), options=(SYNC, ASYNC, LOCAL)),
}


def _constrained(optimizer):
    model = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(
                3, kernel_constraint=keras.constraints.UnitNorm(), kernel_initializer=keras.initializers.Constant(0.2)
            ),
        ]
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def values(model: keras.Model) -> list[np.ndarray]:
    """Everything that a training leaves in a model and its optimizer, but for states of random numbers."""
    kept = [v for v in (*model.weights, *model.optimizer.variables) if "seed" not in v.path]
    return [np.asarray(keras.ops.convert_to_numpy(v), np.float64) for v in kept]


def by_keras(name: str) -> tuple[list[np.ndarray], dict[str, list[float]]]:
    """What `keras.Model.fit` comes to on one device."""
    case = CASES[name]
    model = case.build()
    x, y = case.data()
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    return values(model), history.history


def by_tf2dist(name: str, strategy, options: tf2dist.ParameterServer):
    """What `tf2dist.fit` comes to with these options."""
    case = CASES[name]
    with strategy.scope():
        model = case.build()
    history = tf2dist.fit(
        model, case.data(), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, parameter_server=options
    )
    return values(model), history.history


class Hooks(keras.callbacks.Callback):
    """Notes when the hooks for a batch are called, changes the learning rate, and stops at batch 4."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("begin", batch))
        self.model.optimizer.learning_rate = 0.1 / (1 + batch)

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("end", batch))
        self.model.stop_training = batch == 4


def with_hooks(strategy=None):
    """The calls of `Hooks` in a training of one execution a step, by Keras or on a strategy, and the variables."""
    hooks, (x, y) = Hooks(), data()
    options = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": [hooks]}
    if strategy is None:
        model = classifier(KINDS["sgd"]())
        model.fit(x, y, **options)
    else:
        with strategy.scope():
            model = classifier(KINDS["sgd"]())
        tf2dist.fit(model, (x, y), steps_per_execution=1, **options)
    return hooks.calls, values(model)
