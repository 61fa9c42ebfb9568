"""Trains plain Keras models before, in the middle of and after `tf2dist.fit`.

    python -m tests.programs.keras_beside_us [OPTION...]

Prints JSON: for each option the weights and losses of the three trainings, as hexadecimal bytes, and the functions of
Keras that are not what they were when nothing of tf2dist was imported: after its modules were, and after all training.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import types

import keras
import numpy as np
import tensorflow as tf

BATCH, EXAMPLES, WORDS, LENGTH = 8, 24, 10, 6


def dense(optimizer, **options) -> keras.Model:
    """Three classes from six numbers."""
    model = keras.Sequential([keras.layers.Input([LENGTH]), keras.layers.Dense(3)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


def masked() -> keras.Model:
    """A class for each word that is not 0, the mean over those; and gradients that are clipped."""
    words = keras.layers.Embedding(WORDS, 4, mask_zero=True)
    model = keras.Sequential([keras.layers.Input([LENGTH]), words, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, clipnorm=0.1), loss)
    return model


def weighted() -> keras.Model:
    """Means over sample weights."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model = keras.Sequential([keras.layers.Input([LENGTH]), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def embedded(optimizer) -> keras.Model:
    """Sparse gradients."""
    words = keras.layers.Embedding(WORDS, 4)
    model = keras.Sequential([keras.layers.Input([LENGTH]), words, keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


MODELS = {
    "masks": masked,
    "mean_with_sample_weight": weighted,
    "embedding_adagrad": lambda: embedded(keras.optimizers.Adagrad(0.1)),
    "clipnorm": lambda: dense(keras.optimizers.Adam(0.1, clipnorm=0.1)),
    "global_clipnorm": lambda: dense(keras.optimizers.SGD(0.1, global_clipnorm=0.1)),
    "clipvalue": lambda: dense(keras.optimizers.SGD(0.1, clipvalue=0.01)),
    "gradient_accumulation": lambda: dense(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)),
    "ema_overwrite": lambda: dense(keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2)),
    "loss_scale": lambda: embedded(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adagrad(0.1), 8.0)),
}
ALONE = ("gradient_accumulation", "ema_overwrite")  # Keras itself refuses them in several replicas


OPTIONS = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "epochs": 2}


def data(option: str) -> tuple[np.ndarray, ...]:
    """Three batches: x, y and, where the option is about them, sample weights."""
    random = np.random.default_rng(0)
    words = option in ("masks", "embedding_adagrad", "loss_scale")
    x = random.integers(0, WORDS, [EXAMPLES, LENGTH]) if words else random.random([EXAMPLES, LENGTH], np.float32)
    y = random.integers(0, 3, [EXAMPLES, LENGTH] if option == "masks" else [EXAMPLES])
    return (x, y, random.random(EXAMPLES, np.float32)) if option == "mean_with_sample_weight" else (x, y)


def plain(option: str, strategy) -> dict[str, list[str]]:
    """Trains with Keras alone, in one replica and in two; its weights and losses, byte for byte."""
    replicas = {"one": contextlib.nullcontext()}
    if option not in ALONE:
        replicas["mirrored"] = strategy.scope()
    found = {}
    for name, scope in replicas.items():
        keras.utils.set_random_seed(1)
        with scope:
            model = MODELS[option]()
        names = ("x", "y", "sample_weight")
        history = model.fit(**dict(zip(names, data(option), strict=False)), **OPTIONS)
        values = [*model.get_weights(), np.array(history.history["loss"])]
        found[name] = [value.tobytes().hex() for value in values]
    return found


def beside(option: str, strategy) -> dict[str, dict]:
    """Plain Keras in the middle of and after a training of ours with the same option."""
    import tf2dist

    found = {}

    class Meanwhile(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                found["during"] = plain(option, strategy)

    with strategy.scope():
        model = MODELS[option]()
    tf2dist.fit(model, data(option), **OPTIONS, callbacks=[Meanwhile()])
    return {**found, "after": plain(option, strategy)}


def functions() -> dict[str, object]:
    """Every function of Keras, and every method of its classes, by name."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("keras.src.") and module is not None:
            for key, value in list(vars(module).items()):
                if isinstance(value, types.FunctionType):
                    found[f"{name}.{key}"] = value
                elif isinstance(value, type) and value.__module__.startswith("keras.src."):
                    found |= {f"{name}.{key}.{k}": v for k, v in list(vars(value).items()) if callable(v)}
    return found


def changed(before: dict[str, object]) -> list[str]:
    """Names of functions that are others now."""
    now = functions()
    return [name for name, function in before.items() if now.get(name) is not function]


def main(options: list[str]) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    before = {option: plain(option, strategy) for option in options}
    assert not any(name.partition(".")[0] == "tf2dist" for name in sys.modules)
    known = functions()

    from tests.house.source import modules

    for name, _ in modules("tf2dist"):
        importlib.import_module(name)
    imported = changed(known)
    trained = {option: {"before": before[option], **beside(option, strategy)} for option in options}
    print(json.dumps({"functions": len(known), "imported": imported, "fitted": changed(known), "trained": trained}))


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(MODELS))
