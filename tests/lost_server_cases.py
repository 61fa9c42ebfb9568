"""Trainings that go on when parameter servers are lost; each is compared with `keras.Model.fit` on one device."""

import keras
import numpy as np
import tensorflow as tf

import tf2dist
from tests import custom_step_cases
from tests.custom_step_cases import BATCH, OwnUpdate, one_layer
from tests.models import OPTIMIZERS, TABLE_OPTIMIZERS, classifier, data, embedder, sentences, with_losses_of_layers
from tf2dist.compat.model import all_optimizers

EPOCHS, PER_EPOCH = 12, 7  # 7 batches are a pass; the last one is smaller
SYNC = {"parameter_server": tf2dist.ParameterServer("sync")}
LOCAL = {"parameter_server": tf2dist.ParameterServer(local_steps=3)}


def averaged():
    """Weights are replaced by their averages, and gradients clipped by their norm."""
    return classifier(
        keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5, global_clipnorm=0.5)
    )


def scaled():
    """Its loss is scaled, by a factor that changes as it trains."""
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    return classifier(keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0, dynamic_growth_steps=3))


def unseeded():
    """Its layer of random numbers has no seed, and drops next to nothing."""
    return classifier(OPTIMIZERS["adam"](), keras.layers.Dropout(1e-7))


def in_batches(rows):
    """A Dataset of the rows in their order."""
    return tf.data.Dataset.from_tensor_slices(rows).batch(BATCH)


# Of each: what makes the model, what makes its data, options of `fit`, of the `Checkpoint`.
CASES = {
    "sync": (unseeded, data, SYNC, {}),
    "sync, table": (lambda: embedder(TABLE_OPTIMIZERS["adam"]()), sentences, SYNC, {}),
    "sync, averaged, sharded": (averaged, data, SYNC, {"sharded": True}),
    "sync, dataset": (lambda: classifier(OPTIMIZERS["momentum"]()), lambda: in_batches(data()), SYNC, {}),
    "averaged": (averaged, data, {}, {"in_background": False}),
    "scaled": (scaled, data, {}, {}),
    "layers, dataset, sharded": (with_losses_of_layers, lambda: in_batches(data()), {}, {"sharded": True}),
    "table": (lambda: embedder(TABLE_OPTIMIZERS["momentum"]()), sentences, {}, {}),
    "own step": (one_layer(OwnUpdate), lambda: in_batches(regression()), {}, {}),
    "never called": (custom_step_cases.CASES["vae"][0], lambda: in_batches(regression()[0]), {}, {}),
    "two optimizers": (custom_step_cases.CASES["dcgan"][0], lambda: in_batches(regression()[0]), {}, {"sharded": True}),
    "local steps": (lambda: classifier(OPTIMIZERS["sgd"]()), data, LOCAL, {}),
}


def regression():
    """x f32[103, 12], y f32[103, 1]."""
    x, _ = data()
    return x, x[:, :1]


def arguments(rows):
    """The arguments of `fit` for these rows, in their order."""
    if isinstance(rows, tf.data.Dataset):
        return {"x": rows}
    return {"x": rows[0], "y": rows[1], "batch_size": BATCH, "shuffle": False}


def outcome(model, history):
    """What a training has left: weights, the optimizers' variables, and the logs of its epochs, as JSON takes them."""
    return {
        "weights": [np.asarray(v, float).tolist() for v in model.weights],
        "optimizers": [np.asarray(v, float).tolist() for o in all_optimizers(model) for v in o.variables],
        "epochs": history.epoch,
        "history": {name: [float(v) for v in values] for name, values in history.history.items()},
    }
