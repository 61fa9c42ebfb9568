"""Trains plain Keras models before, in the middle of and after `tf2dist.fit`.

    python -m tests.programs.keras_beside_us [OPTION...]

Prints JSON: for each option the weights and losses of the three trainings, as hexadecimal bytes, and the functions of
Keras and TensorFlow that are not what they were when nothing of tf2dist was imported: after its modules were, and after
all training; and the patches of `tf2dist.compat` that no option has applied.
"""

from __future__ import annotations

import contextlib
import functools
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


def normalized() -> keras.Model:
    """Statistics of the whole batch."""
    normalization = keras.layers.BatchNormalization(synchronized=True)
    model = keras.Sequential([keras.layers.Input([LENGTH]), normalization, keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def regularized() -> keras.Model:
    """A loss that a layer adds."""
    layer = keras.layers.Dense(3, activity_regularizer=keras.regularizers.L2(0.1))
    model = keras.Sequential([keras.layers.Input([LENGTH]), layer])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def overlapping() -> keras.Model:
    """A loss that is one value for all examples."""
    model = keras.Sequential([keras.layers.Input([LENGTH]), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.Dice())
    return model


class CustomStep(keras.Model):
    """A `train_step` with a tape and a metric of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(3, activity_regularizer=keras.regularizers.L2(0.1))
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


def custom_step(optimizer) -> keras.Model:
    """A class with a `train_step`."""
    model = CustomStep()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class OwnFit(keras.Sequential):
    """A class whose own `fit` calls Keras's, as tasks of keras-hub do."""

    def fit(self, *args, **kwargs):
        return super().fit(*args, **kwargs)


def _by_kind(of_kernels, of_others, variable):
    return of_kernels if "kernel" in variable.path else of_others


def own_fit() -> keras.Model:
    """A class with a `fit`."""
    model = OwnFit([keras.layers.Input([LENGTH]), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
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
    "weight_decay": lambda: dense(keras.optimizers.AdamW(0.1)),
    "synchronized_normalization": normalized,
    "layer_losses": regularized,
    "loss_of_whole_batch": overlapping,
    "train_step": lambda: custom_step(keras.optimizers.SGD(0.1, clipnorm=0.1)),
    "train_step_multi_optimizer": lambda: custom_step(
        keras.optimizers.MultiOptimizer(
            functools.partial(_by_kind, keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.2))
        )
    ),
    "bound": own_fit,
}
PACKAGES = ("keras.src.", "tensorflow.python.", "tensorflow._api.v2.nn")
ON_TENSORS = ("embedding_adagrad", "loss_scale", "weight_decay")
ALONE = ("gradient_accumulation", "ema_overwrite", "weight_decay", "bound")  # Keras refuses the first two in several
# What is patched for several replicas only.
TOGETHER = (
    "synchronized_normalization",
    "layer_losses",
    "loss_of_whole_batch",
    "train_step",
    "train_step_multi_optimizer",
)


OPTIONS = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "epochs": 2}


def data(option: str) -> tuple[np.ndarray, ...]:
    """Three batches: x, y and, where the option is about them, sample weights."""
    random = np.random.default_rng(0)
    words = option in ("masks", "embedding_adagrad", "loss_scale")
    x = random.integers(0, WORDS, [EXAMPLES, LENGTH]) if words else random.random([EXAMPLES, LENGTH], np.float32)
    y = random.integers(0, 3, [EXAMPLES, LENGTH] if option == "masks" else [EXAMPLES])
    if option == "loss_of_whole_batch":
        y = random.integers(0, 2, [EXAMPLES, 1]).astype(np.float32)
    return (x, y, random.random(EXAMPLES, np.float32)) if option == "mean_with_sample_weight" else (x, y)


def arguments(option: str) -> dict:
    """Of `fit`."""
    return dict(zip(("x", "y", "sample_weight"), data(option), strict=False)) | OPTIONS


def replicas(option: str) -> list[str]:
    """Where Keras alone is tried: in one replica or in two, or in both."""
    return [name for name, never in (("one", TOGETHER), ("mirrored", ALONE)) if option not in never]


def plain(option: str, strategy, names: list[str]) -> dict[str, list[str]]:
    """Trains with Keras alone in these of `replicas`; its weights and losses, byte for byte."""
    found = {}
    for name in names:
        scope = strategy.scope() if name == "mirrored" else contextlib.nullcontext()
        keras.utils.set_random_seed(1)
        with scope:
            model = MODELS[option]()
        history = model.fit(**arguments(option))
        values = [*model.get_weights(), np.array(history.history["loss"])]
        found[name] = [value.tobytes().hex() for value in values]
    return found


def beside(option: str, strategy) -> dict[str, dict]:
    """Plain Keras in the middle of and after a training of ours with the same option.

    In the middle in the first of its `replicas`, and after in the last of them.
    """
    import tf2dist

    found = {}

    class Meanwhile(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                found["during"] = plain(option, strategy, replicas(option)[:1])

    with strategy.scope():
        model = MODELS[option]()
    fit = tf2dist.bind(model).fit if option == "bound" else functools.partial(tf2dist.fit, model)
    fit(**arguments(option), callbacks=[Meanwhile()])
    found["after"] = plain(option, strategy, replicas(option)[-1:])
    if option in ON_TENSORS:  # as workers with local_steps have it
        from tf2dist.compat.stateless_optimizer import on_tensors

        with on_tensors(model.optimizer):
            found["on_tensors"] = plain(option, strategy, replicas(option))
    return found


def patches() -> dict[str, object]:
    """Every patch of ours, by the module and the names that it replaces."""
    from tf2dist.compat.patching import Patch

    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("tf2dist."):
            values = [v for value in vars(module).values() for v in (value if isinstance(value, list) else [value])]
            found |= {f"{name}: {', '.join(sorted(v.replaces))}": v for v in values if isinstance(v, Patch)}
    return found


@contextlib.contextmanager
def observed(applied: set[object]):
    """Inside, patches that are applied are put into `applied`."""
    from tf2dist.compat.patching import Patch

    original = Patch.applied

    def observe(patch):
        applied.add(patch)
        return original(patch)

    Patch.applied = observe
    try:
        yield
    finally:
        Patch.applied = original


def functions() -> dict[str, object]:
    """Every function of Keras and TensorFlow, and every method of their classes, by name."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES) and module is not None:
            for key, value in list(vars(module).items()):
                if isinstance(value, types.FunctionType):
                    found[f"{name}.{key}"] = value
                elif isinstance(value, type) and value.__module__.startswith(PACKAGES):
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
    before = {option: plain(option, strategy, replicas(option)) for option in options}
    assert not any(name.partition(".")[0] == "tf2dist" for name in sys.modules)
    known = functions()

    from tests.house.source import modules

    for name, _ in modules("tf2dist"):
        importlib.import_module(name)
    imported = changed(known)
    import tf2dist

    tf2dist.make_strategy("one")
    applied: set[object] = set()
    with observed(applied):
        trained = {option: {"before": before[option], **beside(option, strategy)} for option in options}
    never = [name for name, patch in patches().items() if patch not in applied]
    report = {"functions": len(known), "imported": imported, "fitted": changed(known), "trained": trained}
    print(json.dumps(report | {"never_applied": never}))


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(MODELS))
