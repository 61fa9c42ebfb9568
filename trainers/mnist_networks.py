"""The digit classifiers of the mnist trainer: four networks, each with the hyperparameters of its original."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

CLASSES = 10


@dataclass(frozen=True)
class Preset:
    """A network with its hyperparameters.

    Attributes:
      build: makes the compiled model from the learning rate and options.
      learning_rate: of its optimizer.
      batch_size: examples of one update, or of each replica's part of it if `per_replica`.
      epochs: passes over data of MNIST's size; None where `steps` is given.
      steps: updates.
      print_every: updates between two lines of progress; None prints a line an epoch.
    """

    build: Callable
    learning_rate: float
    batch_size: int
    per_replica: bool = False
    epochs: int | None = None
    steps: int | None = None
    print_every: int | None = None


def _compiled(layers, optimizer, *, jit_compile: bool):
    import keras

    model = keras.Sequential([keras.Input((28, 28)), keras.layers.Flatten(), *layers])
    # float32 logits: softmax needs the precision also when the layers compute in bfloat16
    model.add(keras.layers.Activation("linear", dtype="float32", name="logits"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=jit_compile)
    return model


def mlp(learning_rate: float, *, jit_compile=False, **_):
    """784 -> 500 ReLU -> 10, Adam."""
    import keras

    layers = [keras.layers.Dense(500, "relu"), keras.layers.Dense(CLASSES)]
    return _compiled(layers, keras.optimizers.Adam(learning_rate), jit_compile=jit_compile)


def softmax(learning_rate: float, *, jit_compile=False, **_):
    """784 -> 10 from N(0, 1), SGD."""
    import keras

    layers = [keras.layers.Dense(CLASSES, kernel_initializer=keras.initializers.RandomNormal(stddev=1.0))]
    return _compiled(layers, keras.optimizers.SGD(learning_rate), jit_compile=jit_compile)


def sigmoid(learning_rate: float, *, seed=1, jit_compile=False, **_):
    """784 -> 100 sigmoid -> 10, all from N(0, 1), SGD."""
    import keras

    first, second = (keras.initializers.RandomNormal(stddev=1.0, seed=seed + i) for i in range(2))
    layers = [
        keras.layers.Dense(100, "sigmoid", kernel_initializer=first),
        keras.layers.Dense(CLASSES, kernel_initializer=second),
    ]
    return _compiled(layers, keras.optimizers.SGD(learning_rate), jit_compile=jit_compile)


def towers(learning_rate: float, *, decay_steps: float, keep_gradients=False, jit_compile=False, **_):
    """784 -> 500 ReLU -> 10 with L2 on the weights; SGD with exponential decay; moving averages of the weights."""
    import keras

    from tf2dist.optimizers.averaging import AveragingSGD

    # TensorFlow 1's l2_regularizer(1e-4) is 1e-4 times *half* the sum of squares.
    decayed = {"kernel_regularizer": keras.regularizers.L2(0.5e-4)}
    layers = [
        keras.layers.Dense(500, "relu", **decayed),
        keras.layers.Dense(CLASSES, **decayed),
    ]
    schedule = keras.optimizers.schedules.ExponentialDecay(learning_rate, decay_steps, 0.99)
    optimizer = AveragingSGD(schedule, ema_momentum=0.99, keep_gradients=keep_gradients)
    return _compiled(layers, optimizer, jit_compile=jit_compile)


PRESETS = {
    "mlp": Preset(mlp, 1e-3, 128, epochs=5),
    "softmax": Preset(softmax, 0.1, 4000, steps=100, print_every=1),
    "sigmoid": Preset(sigmoid, 1e-3, 100, epochs=20, print_every=100),
    "towers": Preset(towers, 1e-3, 100, per_replica=True, steps=1000, print_every=10),
}
