"""What a configuration means: a compiled model, its data, and the callbacks and arguments of `fit`.

Nothing here knows of tf2dist, and everything is the same in each process that makes it. What is ill-conditioned is
avoided, so that numbers can be compared closely: no bias in front of a normalization, and an epsilon
in the denominators of optimizers that a gradient of rounding errors does not reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, losses, metrics, ops, optimizers, regularizers

from tests.differential import configurations, steps
from tests.differential.configurations import IMAGES, OWN_MODELS, PER_STEP, TOKENS, TWO_OUTPUTS
from tests.models import Measures

_WORDS, _LENGTH, _CLASSES = 9, 5, 3
_NAMES = ("ant", "bee", "cat", "dog")  # the last one is in no vocabulary
_UNITS = {"regression": 2, "classes": _CLASSES, "one_hot": _CLASSES, "binary": 1}


# Data ----------------------------------------------------------------------------------------------------------------


def arrays(c: Mapping[str, Any], rows: int | None = None, seed: int = 0) -> tuple:
    """`(x, y)` or `(x, y, sample_weight)` in NumPy, of as many rows as the configuration says if not given."""
    rows = configurations.rows(c) if rows is None else rows
    random = np.random.default_rng(seed)
    x = _inputs(c, rows, random)
    if c["float64"]:
        x = tf.nest.map_structure(lambda a: a.astype(np.float64), x)
    shapes = [(rows, _LENGTH) if c["model"] in PER_STEP else (rows,)]
    if c["model"] in TWO_OUTPUTS:
        shapes.append((rows,))
    labels = [_labels(c, shape, random) for shape in shapes]
    if c["nan"]:  # among the inputs it may get lost: TensorFlow's fused operations make 0 of it
        labels[0][-1] = np.nan
    y = _like_outputs(c, labels)
    if c["sample_weight"] is None:
        return x, y
    if c["sample_weight"] == "common":
        return x, y, _weights(c, (rows,), random)
    return x, y, _like_outputs(c, [_weights(c, shape, random) for shape in shapes])


def _inputs(c: Mapping[str, Any], rows: int, random: np.random.Generator) -> Any:
    def floats(*shape: int) -> np.ndarray:
        return random.normal(size=(rows, *shape)).astype(np.float32)

    def tokens(*shape: int) -> np.ndarray:
        return random.integers(1, _WORDS, (rows, *shape)).astype(np.int32)

    kind = c["model"]
    if kind in ("two_towers", "shared_embedding"):
        return {"a": tokens(), "b": tokens()}
    if kind in ("two_inputs", "subclassed_inputs"):
        return {"a": floats(4), "b": floats(3)}
    if kind == "two_inputs_list":
        return [floats(4), floats(3)]
    lengths = random.integers(2, _LENGTH + 1, (rows, 1))
    if c["blank"]:  # all words of the first half of each batch are masked
        lengths[np.arange(rows) % c["batch"] < c["batch"] / 2] = 0
    if kind in TOKENS:  # sentences of 2 to 5 words, filled up with 0
        return np.where(np.arange(_LENGTH) < lengths, tokens(_LENGTH), 0)
    if kind in ("masked_rnn", "time_distributed"):
        return floats(_LENGTH, 3) * (np.arange(_LENGTH) < lengths).astype(np.float32)[..., None]
    if kind == "strings":
        return np.array(_NAMES)[random.integers(0, len(_NAMES), (rows, 3))]
    if kind == "numbers":
        return {"flags": random.integers(0, 2, (rows, 3)).astype(bool), "counts": random.integers(0, 9, (rows, 2))}
    if kind == "pixels":
        return random.integers(0, 256, (rows, 6, 6, 1)).astype(np.uint8)
    shapes = {"convolution": (6, 6, 1), "gru": (_LENGTH, 3)}
    return floats(*shapes.get(kind, (6,)))


def _labels(c: Mapping[str, Any], shape: tuple, random: np.random.Generator) -> np.ndarray:
    kind = configurations.target(c)
    if kind == "regression":
        return np.abs(random.normal(size=(*shape, 2))).astype(np.float32)
    if kind == "binary":
        return random.integers(0, 2, (*shape, 1)).astype(np.float32)
    classes = random.integers(0, _CLASSES, shape)
    return np.eye(_CLASSES, dtype=np.float32)[classes] if kind == "one_hot" else classes.astype(np.int32)


def _weights(c: Mapping[str, Any], shape: tuple, random: np.random.Generator) -> np.ndarray:
    weights = random.uniform(0.5, 2.0, shape).astype(np.float32)
    if c["sample_weight"] == "ones":
        weights[:] = 1
    elif c["sample_weight"] == "zeros":
        weights[::2] = 0
    elif c["sample_weight"] == "zero_batch":
        weights[: c["batch"]] = 0
    elif c["sample_weight"] == "zero_slice":  # the first half of each batch
        weights[np.arange(len(weights)) % c["batch"] < c["batch"] / 2] = 0
    return weights


def _like_outputs(c: Mapping[str, Any], values: list) -> Any:
    """One value for each output, in the structure of the model's outputs."""
    if c["model"] not in TWO_OUTPUTS:
        return values[0]
    return {"one": values[0], "two": values[1]} if c["model"] == "two_outputs_dict" else values


def whole_batches(values: tuple, batch: int, order: Callable[[np.ndarray], np.ndarray]) -> tuple:
    """The arrays with the rows of each batch in another order."""
    rows = np.arange(len(tf.nest.flatten(values)[0]))
    indices = np.concatenate([order(rows[first : first + batch]) for first in range(0, len(rows), batch)])
    return tf.nest.map_structure(lambda a: a[indices], values)


def as_dataset(values: tuple, batch: int, *, shuffled: bool = False, drop_remainder: bool = False) -> tf.data.Dataset:
    """The arrays as a dataset of global batches. A list in a dataset would be one tensor, so they become tuples."""
    rows = tf.data.Dataset.from_tensor_slices(tuple(tuple(v) if isinstance(v, list) else v for v in values))
    if shuffled:  # once, so that each pass has the same order
        rows = rows.shuffle(100, seed=3, reshuffle_each_iteration=False)
    return rows.batch(batch, drop_remainder=drop_remainder)


def training_data(c: Mapping[str, Any], values: tuple) -> Any:
    """What `tf2dist.fit` gets: arrays, a dataset or a function."""
    if c["data"] == "arrays":
        return values

    def of_a_replica(context: tf.distribute.InputContext) -> tf.data.Dataset:
        batches = as_dataset(values, c["batch"] // context.num_replicas_in_sync)
        return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

    return of_a_replica if c["data"] == "function" else keras_dataset(c, values)


def keras_dataset(c: Mapping[str, Any], values: tuple) -> tf.data.Dataset:
    """The global batches as `keras.Model.fit` gets them, for data that is not given as arrays."""
    dataset = as_dataset(values, c["batch"], shuffled=c["shuffle"], drop_remainder=c["data"] == "static")
    if c["data"] == "unknown_length":
        return dataset.filter(lambda *batch: True)
    if c["data"] == "generator":
        specs = tf.nest.map_structure(lambda s: tf.TensorSpec([None, *s.shape[1:]], s.dtype), dataset.element_spec)
        return tf.data.Dataset.from_generator(lambda: iter(dataset), output_signature=specs)
    return dataset.repeat() if c["data"] in ("endless", "function") else dataset


def validation_data(c: Mapping[str, Any]) -> Any:
    """Other rows than those of training; the last batch is partial."""
    if c["validation"] is None:
        return None
    values = arrays(c, rows=2 * c["batch"] + 1, seed=1)
    return values if c["validation"] == "arrays" else as_dataset(values, c["batch"])


# Models --------------------------------------------------------------------------------------------------------------


@keras.saving.register_keras_serializable("differential")
class AddsLoss(layers.Layer):
    """Adds a loss of what goes through it."""

    def __init__(self, reduce: str, **kwargs):
        super().__init__(**kwargs)
        self.reduce, self.supports_masking = reduce, True

    def call(self, x):
        self.add_loss(0.1 * getattr(ops, self.reduce)(ops.square(ops.cast(x, "float32"))))
        return x


class Scaled:
    """Its loss is twice that of `compile`."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 2.0 * super().compute_loss(x, y, y_pred, sample_weight, training=training)


class OwnMean:
    """Its loss is a mean of its own."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(ops.cast(y, y_pred.dtype) - y_pred)) + sum(self.losses)


class Measured:
    """Holds a metric that it updates where it computes the loss."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.size = metrics.Mean(name="size")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.size.update_state(ops.abs(y_pred))
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)


class Distilled:
    """Learns from soft labels, too, and says nothing of training, as the example of knowledge distillation."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        soft = ops.softmax(ops.stop_gradient(ops.flip(y_pred, -1)) / 3.0)
        hard = losses.MeanSquaredError()(y, y_pred)
        return 0.3 * hard + 0.7 * losses.KLDivergence()(soft, ops.softmax(y_pred / 3.0))


# Beside `keras.Model` and not under it: Keras makes a class functional for good that gets inputs and outputs once.
_COMPUTE_LOSS = {
    None: (),
    "scaled": (Scaled,),
    "own_mean": (OwnMean,),
    "measured": (Measured,),
    "distilled": (Distilled,),
}


def _trunk(c: Mapping[str, Any]) -> list[layers.Layer]:
    """What all models have between their inputs and their outputs."""
    penalties = {None: None, "l2": regularizers.L2(0.05), "l1_l2": regularizers.L1L2(0.01, 0.02)}
    dense = layers.Dense(
        4, "tanh",
        kernel_regularizer=penalties[c["regularizer"]],
        activity_regularizer=regularizers.L2(0.1) if c["activity_regularizer"] else None,
        kernel_constraint=keras.constraints.MaxNorm(0.7) if c["constraint"] else None,
    )  # fmt: skip
    trunk: list[layers.Layer] = [dense]
    if c["random"] == "dropout":
        trunk.append(layers.Dropout(0.4))
    elif c["random"] == "noise":
        trunk += [layers.GaussianNoise(0.3), layers.GaussianDropout(0.2)]
    dense.trainable = not c["frozen"]
    if c["normalization"] == "batch":
        trunk.append(layers.BatchNormalization(momentum=0.8, synchronized=True))
    elif c["normalization"] == "layer":
        trunk.append(layers.LayerNormalization())
    elif c["normalization"] == "spectral":
        trunk.append(layers.SpectralNormalization(layers.Dense(4)))
    if c["add_loss"]:
        trunk.append(AddsLoss(c["add_loss"]))
    if c["layer_metric"]:
        trunk.append(Measures())
    return trunk


def _head(c: Mapping[str, Any], name: str | None = None) -> layers.Layer:
    kind = configurations.target(c)
    activation = {"one_hot": "softmax", "binary": "sigmoid"}.get(kind, "softplus" if c["loss"] == "poisson" else None)
    return layers.Dense(_UNITS[kind], activation, dtype="float32", name=name)


_TRAINED_OTHERWISE = (layers.BatchNormalization, layers.Dropout, layers.GaussianNoise, layers.GaussianDropout)


class _Subclassed:
    """The methods of a model that is no graph of layers; its variables are made when it is first called."""

    def __init__(self, c: Mapping[str, Any]):
        super().__init__()
        self.first = [layers.Dense(4, "tanh") for _ in range(2)]
        self.trunk = _trunk(c)
        self.head = _head(c)

    def call(self, x, training=False):
        parts = [x["a"], x["b"]] if isinstance(x, dict) else [x]
        x = sum(layer(part) for layer, part in zip(self.first, parts, strict=False))
        for layer in self.trunk:
            x = layer(x, training=training) if isinstance(layer, _TRAINED_OTHERWISE) else layer(x)
        return self.head(x)


def _features(c: Mapping[str, Any]) -> tuple[Any, Any]:
    """The inputs of a functional model, and what its trunk gets."""
    kind = c["model"]

    def table(mask: bool = False) -> layers.Layer:
        return layers.Embedding(_WORDS, 4, mask_zero=mask, embeddings_initializer=keras.initializers.RandomNormal())

    if kind in ("two_towers", "shared_embedding"):
        inputs = {name: keras.Input((), name=name, dtype="int32") for name in "ab"}
        one = table()
        other = one if kind == "shared_embedding" else table()
        return inputs, layers.Concatenate()([one(inputs["a"]), other(inputs["b"])])
    if kind in ("two_inputs", "two_inputs_list"):
        a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
        features = layers.Concatenate()([layers.Dense(3, "relu")(a), b])
        return ({"a": a, "b": b} if kind == "two_inputs" else [a, b]), features
    noise = {"dropout": 0.3, "recurrent_dropout": 0.2} if c["random"] == "recurrent_dropout" else {}
    if kind in TOKENS:
        inputs = keras.Input((_LENGTH,), dtype="int32")
        words = table(mask=kind not in ("embedding", "attention"))(inputs)
        if kind == "lstm":
            return inputs, layers.LSTM(4, **noise)(words)
        if kind in ("tagger", "two_outputs_steps"):
            return inputs, words
        if kind in ("bidirectional", "bidirectional_tagger"):
            words = layers.Bidirectional(layers.GRU(3, return_sequences=True))(words)
            words = layers.TimeDistributed(layers.Dense(4, "tanh"))(layers.LayerNormalization()(words))
            last = layers.LSTM(2, return_sequences=kind == "bidirectional_tagger")
            return inputs, layers.Bidirectional(last, merge_mode="sum")(words)
        if kind == "attention":
            words = words + layers.Embedding(_LENGTH, 4)(ops.arange(_LENGTH))
            words = words + layers.MultiHeadAttention(2, 2, use_bias=False)(words, words)
        return inputs, layers.GlobalAveragePooling1D()(words)
    if kind == "strings":
        inputs = keras.Input((3,), dtype="string")
        known = layers.StringLookup(vocabulary=list(_NAMES[:-1]))(inputs)
        return inputs, layers.Flatten()(table()(known))
    if kind == "numbers":
        flags, counts = keras.Input((3,), name="flags", dtype="bool"), keras.Input((2,), name="counts", dtype="int64")
        parts = [ops.cast(flags, "float32"), layers.Rescaling(0.2)(counts)]
        return {"flags": flags, "counts": counts}, layers.Concatenate()(parts)
    if kind in IMAGES:
        inputs = keras.Input((6, 6, 1), dtype="uint8" if kind == "pixels" else None)
        images = layers.Rescaling(1 / 128, -1.0)(inputs) if kind == "pixels" else inputs
        if c["random"] == "augmentation":
            images = layers.RandomTranslation(0.2, 0.2)(layers.RandomFlip()(images))
        return inputs, layers.Flatten()(layers.MaxPooling2D(2)(layers.Conv2D(2, 3, activation="relu")(images)))
    shapes = {"gru": (_LENGTH, 3), "masked_rnn": (_LENGTH, 3), "time_distributed": (_LENGTH, 3)}
    inputs = keras.Input(shapes.get(kind, (6,)))
    if kind == "gru":
        return inputs, layers.GRU(4, **noise)(inputs)
    if kind == "time_distributed":
        hidden = layers.TimeDistributed(layers.Dense(4, "tanh"))(layers.Masking()(inputs))
        return inputs, layers.GlobalAveragePooling1D()(hidden)
    if kind == "nested":  # a model in a model, called twice, and a model beside it
        inner = keras.Sequential([keras.Input((6,)), layers.Dense(4, "relu"), layers.Dense(3, "tanh")])
        middle = keras.Input((6,))
        whole = keras.Model(middle, layers.Concatenate()([inner(middle), layers.Dense(2)(middle)]))
        return inputs, layers.Add()([whole(inputs), whole(0.5 * inputs)])
    if kind == "masked_rnn":
        return inputs, layers.SimpleRNN(4, return_sequences=True)(layers.Masking()(inputs))
    if kind == "shared":
        same = layers.Dense(4, "tanh")
        return inputs, layers.Subtract()([same(inputs[:, :3]), same(inputs[:, 3:])])
    return inputs, layers.Dense(4, "relu")(inputs)


def model(c: Mapping[str, Any], eager: bool = False) -> keras.Model:
    """The compiled model; with the same weights and names each time it is made after `keras.utils.set_random_seed`.

    Args:
      eager: does Keras run its steps as they are written?
    """
    bases, own = (*_COMPUTE_LOSS[c["compute_loss"]], keras.Model), steps.methods(c)
    keras.config.set_dtype_policy(c["dtype"])
    try:
        if c["train_step"] in OWN_MODELS:
            made = steps.own_model(c, _trunk(c))
        elif c["model"].startswith("subclassed"):
            made = type("Subclassed", (_Subclassed, *bases), own)(c)
        else:
            inputs, x = _features(c)
            for layer in _trunk(c):
                x = layer(x)
            outputs = [_head(c, name)(x) for name in (("one", "two") if c["model"] in TWO_OUTPUTS else (None,))]
            if c["model"] == "two_outputs_steps":
                outputs[1] = layers.GlobalMaxPooling1D()(outputs[1])
            made = type("Own", bases, own)(inputs, _like_outputs(c, outputs))
    finally:
        keras.config.set_dtype_policy("float32")
    steps.finish(c, made)
    compile_anew(c, made, eager)
    return made


def compile_anew(c: Mapping[str, Any], made: keras.Model, eager: bool) -> None:
    """Compiles the model with a new optimizer; `eager` as for `model`."""
    optimizer, how = _optimizer(c), {"run_eagerly": eager, "jit_compile": False}
    if c["train_step"] == "adversaries":
        made.compile(optimizer, optimizers.SGD(0.02), losses.BinaryCrossentropy(from_logits=True), **how)
    elif c["train_step"] == "autoencoder":
        made.compile(optimizer, **how)
    elif c["train_step"] == "two_optimizers":
        made.compile(optimizer, optimizers.Adam(0.02, epsilon=1e-3), **how, **_compiled(c))
    else:
        made.compile(optimizer, **how, **_compiled(c))
    if c["optimizer"] == "schedule_free":
        optimizer.build(made.trainable_variables)  # Keras builds this one wrongly while it traces


def change_between(c: Mapping[str, Any], made: keras.Model, eager: bool) -> None:
    """What happens to the model between two calls of `fit`."""
    if c["between"] == "rate":
        made.optimizer.learning_rate = 0.01
    elif c["between"] == "freeze":  # Keras wants it to be compiled anew
        next(layer for layer in made.layers if isinstance(layer, layers.Dense)).trainable = False
        compile_anew(c, made, eager)
    elif c["between"] == "recompile":
        compile_anew(c, made, eager)


# Losses and metrics --------------------------------------------------------------------------------------------------


def own(y, y_pred):
    """A loss of the user's own: one value an example."""
    return ops.mean(ops.log1p(ops.square(y - y_pred)), axis=-1)


def own_scalar(y, y_pred):
    """A loss of the user's own, which takes the mean itself."""
    return ops.mean(ops.log1p(ops.square(y - y_pred)))


class OwnLoss(losses.Loss):
    """The same as a class."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, y, y_pred):
        return self.function(y, y_pred)


def close(y, y_pred):
    """A metric that is a plain function."""
    y = ops.cast(y, "float32")
    y = ops.mean(y, axis=-1) if len(y.shape) == len(y_pred.shape) else y
    return ops.cast(ops.abs(y - ops.mean(y_pred, axis=-1)) < 0.5, "float32")


class Largest(metrics.Metric):
    """A metric of the user's own: sums of two columns."""

    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable((2,), "zeros", name="total")

    def update_state(self, y, y_pred, sample_weight=None):
        largest = ops.max(ops.abs(y_pred), axis=-1)
        self.total.assign(self.total + ops.stack([ops.sum(largest), ops.sum(ops.ones_like(largest))]))

    def result(self):
        return self.total[0] / ops.maximum(self.total[1], 1.0)


def _loss(c: Mapping[str, Any]) -> Any:
    reduction = {"reduction": None if c["reduction"] == "none" else c["reduction"]}
    smoothing = {"label_smoothing": c["smoothing"]}
    made: dict[str, Callable[[], Any]] = {
        "mse": lambda: losses.MeanSquaredError(**reduction),
        "mae": lambda: losses.MeanAbsoluteError(**reduction),
        "huber": lambda: losses.Huber(**reduction),
        "log_cosh": lambda: losses.LogCosh(**reduction),
        "cosine": lambda: losses.CosineSimilarity(**reduction),
        "poisson": lambda: losses.Poisson(**reduction),
        "own": lambda: own,
        "own_scalar": lambda: own_scalar,
        "own_class": lambda: OwnLoss(own, **reduction),
        "own_class_scalar": lambda: OwnLoss(own_scalar, **reduction),
        "sparse": lambda: losses.SparseCategoricalCrossentropy(from_logits=True, **reduction),
        "sparse_ignoring": lambda: losses.SparseCategoricalCrossentropy(True, ignore_class=0, **reduction),
        "categorical": lambda: losses.CategoricalCrossentropy(**smoothing, **reduction),
        "categorical_focal": lambda: losses.CategoricalFocalCrossentropy(**smoothing, **reduction),
        "kl": lambda: losses.KLDivergence(**reduction),
        "categorical_hinge": lambda: losses.CategoricalHinge(**reduction),
        "dice": lambda: losses.Dice(**reduction),
        "tversky": lambda: losses.Tversky(**reduction),
        "binary": lambda: losses.BinaryCrossentropy(**smoothing, **reduction),
        "binary_focal": lambda: losses.BinaryFocalCrossentropy(**smoothing, **reduction),
        "hinge": lambda: losses.Hinge(**reduction),
    }
    return made[c["loss"]]()


def _metrics(c: Mapping[str, Any]) -> list:
    kind = configurations.target(c)
    if c["metrics"] == "counts":
        return [metrics.AUC(20), metrics.Precision(), metrics.TruePositives()]
    if c["metrics"] == "vector":
        return [metrics.F1Score(), metrics.OneHotMeanIoU(_CLASSES)]
    if c["metrics"] == "own_function":
        return [close]
    if c["metrics"] == "own_class":
        return [Largest()]
    return ["mae"] if kind == "regression" else ["accuracy"]


def _compiled(c: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `compile` beside the optimizer."""
    outputs = 2 if c["model"] in TWO_OUTPUTS else 1
    chosen = [_loss(c) for _ in range(outputs)]
    if c["second_loss"]:
        chosen[1] = losses.MeanAbsoluteError() if c["second_loss"] == "mae" else None
    made: dict[str, Any] = {"loss": _like_outputs(c, chosen)}
    if c["loss_weights"]:
        made["loss_weights"] = _like_outputs(c, [0.5, 2.0])
    elif c["scaling"] == "overflow" and c["second_loss"] != "nothing":
        made["loss_weights"] = _like_outputs(c, [_LARGE] * outputs)
    if c["metrics"] == "of_one_output":
        both = _like_outputs(c, [_metrics(c), []])
        return made | {"metrics": {"one": both["one"]} if isinstance(both, dict) else both}
    weighted = {"weighted": ("weighted_metrics",), "both": ("metrics", "weighted_metrics")}
    if c["metrics"]:
        for name in weighted.get(c["metrics"], ("metrics",)):
            made[name] = _like_outputs(c, [_metrics(c) for _ in range(outputs)])
    return made


# Optimizers ----------------------------------------------------------------------------------------------------------

_EPSILON = {"epsilon": 1e-3}
_LARGE = 16.0  # times what it is else is the loss that overflows
OPTIMIZERS: dict[str, tuple[Any, float, dict]] = {  # the class, its learning rate, what else it is given
    "sgd": (optimizers.SGD, 0.05, {}),
    "momentum": (optimizers.SGD, 0.05, {"momentum": 0.9}),
    "nesterov": (optimizers.SGD, 0.05, {"momentum": 0.9, "nesterov": True}),
    "adam": (optimizers.Adam, 0.02, _EPSILON),
    "amsgrad": (optimizers.Adam, 0.02, {"amsgrad": True, **_EPSILON}),
    "adamw": (optimizers.AdamW, 0.02, _EPSILON),
    "adamax": (optimizers.Adamax, 0.02, _EPSILON),
    "adadelta": (optimizers.Adadelta, 1.0, _EPSILON),
    "adagrad": (optimizers.Adagrad, 0.05, _EPSILON),
    "rmsprop": (optimizers.RMSprop, 0.02, _EPSILON),
    "centered_rmsprop": (optimizers.RMSprop, 0.02, {"momentum": 0.5, "centered": True, **_EPSILON}),
    "nadam": (optimizers.Nadam, 0.02, _EPSILON),
    "ftrl": (optimizers.Ftrl, 0.1, {"l1_regularization_strength": 0.001}),
    "lion": (optimizers.Lion, 0.01, {}),
    "lamb": (optimizers.Lamb, 0.02, _EPSILON),
    "adafactor": (optimizers.Adafactor, 0.05, {}),
    "muon": (optimizers.Muon, 0.02, _EPSILON),
    "schedule_free": (optimizers.ScheduleFreeAdamW, 0.02, {"warmup_steps": 2, **_EPSILON}),
}


def _schedule(c: Mapping[str, Any], rate: float) -> Any:
    schedules = optimizers.schedules
    made: dict[Any, Callable[[], Any]] = {
        None: lambda: rate,
        "exponential": lambda: schedules.ExponentialDecay(rate, 2, 0.5),
        "cosine": lambda: schedules.CosineDecay(rate / 2, 4, warmup_target=rate, warmup_steps=2),
        "piecewise": lambda: schedules.PiecewiseConstantDecay([2], [rate, rate / 4]),
    }
    return made[c["schedule"]]()


def _optimizer(c: Mapping[str, Any]) -> optimizers.Optimizer:
    kind, rate, given = OPTIMIZERS[c["optimizer"]]
    given = dict(given)
    if c["scaling"] == "overflow" and c["optimizer"] in ("sgd", "momentum", "nesterov"):
        rate /= _LARGE  # what makes the loss so large
    if c["clip"]:
        given[c["clip"]] = {"clipnorm": 0.1, "clipvalue": 0.05, "global_clipnorm": 0.2}[c["clip"]]
    if c["weight_decay"]:
        given["weight_decay"] = 0.1
    if c["ema"]:
        given |= {"use_ema": True, "ema_momentum": 0.7}
        given["ema_overwrite_frequency"] = 2 if c["ema"] == "overwrite" else None
    if c["accumulation"]:
        given["gradient_accumulation_steps"] = c["accumulation"]
    if c["scaling"] == "factor":
        given["loss_scale_factor"] = 128.0
    made = kind(_schedule(c, rate), **given)
    if c["scaling"] == "dynamic":
        return optimizers.LossScaleOptimizer(made, initial_scale=64.0, dynamic_growth_steps=2)
    if c["scaling"] == "overflow":  # the first gradients are infinite, and the scale grows again within an epoch
        scale = 2.0**24 if c["dtype"] == "mixed_float16" else 2.0**127
        return optimizers.LossScaleOptimizer(made, initial_scale=scale, dynamic_growth_steps=2)
    if c["dtype"] == "mixed_float16" and not c["scaling"]:
        # Not Keras's 32,768: sums over a replica's rows and over all of them would not be infinite in the same steps.
        return optimizers.LossScaleOptimizer(made, initial_scale=1024.0)
    if c["scaling"] == "several":
        other = optimizers.SGD(0.05)
        return optimizers.MultiOptimizer(lambda variable: other if "bias" in variable.path else made)
    return made


# Callbacks -----------------------------------------------------------------------------------------------------------


class Hooks(keras.callbacks.LambdaCallback):
    """Notes what the hooks of training batches are called with."""

    def __init__(self):
        self.begun: list[int] = []
        self.ended: list[tuple[int, float]] = []
        self.steps: Any = "on_train_begin was not called"
        super().__init__(
            on_train_begin=lambda logs: setattr(self, "steps", self.params.get("steps")),
            on_train_batch_begin=lambda batch, logs: self.begun.append(int(batch)),
            on_train_batch_end=lambda batch, logs: self.ended.append((int(batch), float(logs["loss"]))),
            on_epoch_end=lambda epoch, logs: self._forget_batches_that_did_not_come(),
        )

    def _forget_batches_that_did_not_come(self) -> None:
        """Keras says that a batch begins, and then looks whether data of unknown length have one."""
        del self.begun[len(self.ended) :]


class StopsAtBatch(keras.callbacks.Callback):
    """Ends training after the second batch of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.stop_training = True


def callbacks(c: Mapping[str, Any], directory: str) -> list[keras.callbacks.Callback]:
    """The callbacks; those that write files do so in `directory`."""
    made: list[keras.callbacks.Callback] = []
    if c["scheduler"]:
        made.append(keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5))
    if c["early_stopping"] == "best":  # the largest loss, which is mostly an early one
        best = keras.callbacks.EarlyStopping("loss", patience=0, mode="max", restore_best_weights=True)
        made.append(best)
    elif c["early_stopping"]:
        made.append(keras.callbacks.EarlyStopping("loss", min_delta=1e6, patience=0))
    if c["plateau"]:
        made.append(keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=1e6))
    if c["checkpoint"]:
        path = f"{directory}/best.weights.h5"
        made.append(keras.callbacks.ModelCheckpoint(path, "loss", save_best_only=True, save_weights_only=True))
    if c["nan"]:
        made.append(keras.callbacks.TerminateOnNaN())
    if c["batch_hooks"]:
        made.append(Hooks())
    if c["stop_at_batch"]:
        made.append(StopsAtBatch())
    if c["csv"]:
        made.append(keras.callbacks.CSVLogger(f"{directory}/log.csv"))
    return made
