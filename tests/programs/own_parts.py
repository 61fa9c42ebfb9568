"""Models with layers, losses and metrics of the user's own, and a program that trains them in a job.

python -m launch local --workers=2 -- tests.programs.own_parts multiworker|ps|sync OUT NAME...
"""

import contextlib
import pathlib
import pickle
import sys
import types

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

BATCH, EPOCHS = 4, 2


def data():
    """x f32[10, 3], y f32[10, 1]: the last batch has two rows."""
    random = np.random.default_rng(0)
    return random.normal(size=(10, 3)).astype(np.float32), random.normal(size=(10, 1)).astype(np.float32)


def _net(layer=None, kind=keras.Model, last=1):
    inputs = keras.Input((3,))
    hidden = layers.Dense(4, "tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=1))(inputs)
    hidden = hidden if layer is None else layer(hidden)
    outputs = layers.Dense(last, kernel_initializer=keras.initializers.GlorotUniform(seed=2))(hidden)
    return kind(inputs, outputs)


def _compiled(model, loss="mse", metrics=()):
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=list(metrics))
    return model


def _learning_rate():
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))

    def rate(y_true, y_pred):
        return ops.convert_to_tensor(optimizer.learning_rate)

    model = _net()
    model.compile(optimizer, "mse", metrics=[rate])
    return model


class AfterUpdate(keras.Model):
    """A metric of the outputs after the update."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.after = keras.metrics.Mean(name="after")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.after.update_state(ops.square(self(x, training=False) - y))
        return super().compute_metrics(x, y, y_pred, sample_weight)


class Counting(keras.Model):
    """Its `compute_metrics` writes what is no metric."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.seen.assign_add(1.0)
        return super().compute_metrics(x, y, y_pred, sample_weight)


class OwnTracker(keras.Model):
    """Lists one metric alone, which its loss updates."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="mine")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        losses = ops.mean(ops.square(y - y_pred), axis=-1)
        self.tracker.update_state(losses)
        return ops.mean(losses)

    @property
    def metrics(self):
        return [self.tracker]


class LastLayerOnly(keras.Model):
    @property
    def trainable_weights(self):
        return self.layers[-1].trainable_weights


class ResetInStep(keras.Model):
    """Logs what a metric has come to in each step, and begins it anew."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.now = keras.metrics.Mean(name="of_step")

    def train_step(self, data):
        logs = super().train_step(data)
        self.now.update_state(logs["loss"])
        now = self.now.result()
        self.now.reset_state()
        return {"now": now}


class AcrossEpochs(keras.metrics.Metric):
    """Counts rows, and never begins anew."""

    def __init__(self, name="rows"):
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.cast(ops.shape(y_pred)[0], "float32"))

    def reset_state(self):
        pass

    def result(self):
        return 1.0 * self.total


class Extremes(keras.metrics.Metric):
    """The largest and the smallest number of all outputs, and how many rows there were."""

    state_merges = types.MappingProxyType({"largest": "max", "smallest": "min"})

    def __init__(self, name="extremes"):
        super().__init__(name=name)
        self.largest = self.add_weight(name="largest", initializer=keras.initializers.Constant(-np.inf))
        self.smallest = self.add_weight(name="smallest", initializer=keras.initializers.Constant(np.inf))
        self.rows = self.add_weight(name="rows", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))
        self.smallest.assign(ops.minimum(self.smallest, ops.min(y_pred)))
        self.rows.assign_add(ops.cast(ops.shape(y_pred)[0], "float32"))

    def reset_state(self):
        self.largest.assign(-np.inf)
        self.smallest.assign(np.inf)
        self.rows.assign(0.0)

    def result(self):
        return {"largest": 1.0 * self.largest, "smallest": 1.0 * self.smallest, "rows": 1.0 * self.rows}


class FromZero(keras.metrics.Metric):
    """Largest numbers that begin at zero, a float and an integer."""

    state_merges = types.MappingProxyType({"value": "max", "whole": "max"})

    def __init__(self, name="from_zero"):
        super().__init__(name=name)
        self.value = self.add_weight(name="value", initializer="zeros")
        self.whole = self.add_weight(name="whole", initializer="zeros", dtype="int32")

    def update_state(self, y_true, y_pred, sample_weight=None):
        largest = ops.max(ops.abs(y_pred - y_true))
        self.value.assign(ops.maximum(self.value, largest))
        self.whole.assign(ops.maximum(self.whole, ops.cast(100 * largest, "int32")))

    def result(self):
        return {"value": 1.0 * self.value, "whole": 1 * self.whole}


class OneInAnother(keras.metrics.Metric):
    """What the metrics in it say, they say of themselves."""

    def __init__(self, name="outer"):
        super().__init__(name=name)
        self.inner = FromZero()
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.inner.update_state(y_true, y_pred)
        self.value.assign_add(ops.sum(y_pred))

    def result(self):
        return {"summed": 1.0 * self.value, "largest": 1.0 * self.inner.value}


class BestSoFar(keras.metrics.Metric):
    """Its state is a largest one, but not that of what each batch brings."""

    state_merges = types.MappingProxyType({"best": "max"})

    def __init__(self, name="best"):
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.rows = self.add_weight(name="rows", initializer="zeros")
        self.best = self.add_weight(name="best", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.abs(y_true - y_pred)))
        self.rows.assign_add(ops.cast(ops.shape(y_pred)[0], "float32"))
        self.best.assign(ops.maximum(self.best, self.total / self.rows))

    def result(self):
        return 1.0 * self.best


class MeasuresExtremes(layers.Layer):
    def __init__(self):
        super().__init__()
        self.extremes = Extremes()

    def call(self, inputs):
        self.extremes.update_state(None, inputs)
        return inputs


class MeasuresInStep(keras.Model):
    """A step of its own, with the metrics of `compile`."""

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(x, y, outputs)
        self.optimizer.apply(tape.gradient(loss, [v.value for v in self.trainable_variables]), self.trainable_variables)
        return self.measure(loss, x, y, outputs)

    def test_step(self, batch):
        x, y = batch
        outputs = self(x, training=False)
        return self.measure(self.compute_loss(x, y, outputs, training=False), x, y, outputs)

    def measure(self, loss, x, y, outputs):
        self._loss_tracker.update_state(loss, sample_weight=ops.shape(x)[0])
        return self.compute_metrics(x, y, outputs)


class ExtremesInStep(MeasuresInStep):
    """The same, with a metric of the model's own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extremes = Extremes()

    @property
    def metrics(self):
        return [self._loss_tracker, self.extremes]

    def measure(self, loss, x, y, outputs):
        self._loss_tracker.update_state(loss, sample_weight=ops.shape(x)[0])
        self.extremes.update_state(y, outputs)
        return self.get_metrics_result()


class SumWhileTraining(layers.Layer):
    def call(self, inputs, training=False):
        if training:
            self.add_loss(0.05 * ops.sum(ops.square(inputs)))
        return inputs


class BalanceWhileTraining(layers.Layer):
    def call(self, inputs, training=False):
        if training:
            shares = ops.mean(ops.softmax(inputs), 0)
            self.add_loss(3 * ops.sum(shares * shares))
        return inputs


class OwnState(layers.Layer):
    """Takes away a moving mean of what it has seen."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * ops.mean(inputs, 0))
        return inputs - self.mean


class Largest(layers.Layer):
    """Measures the largest value of a batch."""

    def __init__(self):
        super().__init__()
        self.largest = keras.metrics.Mean(name="largest")

    def call(self, inputs):
        self.largest.update_state(ops.max(ops.abs(inputs)))
        return inputs


def _rank_1():
    inputs = keras.Input((3,))
    kernel = keras.initializers.GlorotUniform(seed=1)
    outputs = ops.sum(layers.Dense(2, kernel_initializer=kernel)(inputs), -1)
    return _compiled(keras.Model(inputs, outputs), keras.losses.MeanSquaredError())


def _stateful():
    inputs = keras.Input(batch_shape=(2, 3))
    rows = layers.Reshape((3, 1))(inputs)
    start = {f"{name}_initializer": keras.initializers.GlorotUniform(seed=3) for name in ("kernel", "recurrent")}
    hidden = layers.LSTM(3, stateful=True, **start)(rows)
    kernel = keras.initializers.GlorotUniform(seed=2)
    return _compiled(keras.Model(inputs, layers.Dense(1, kernel_initializer=kernel)(hidden)))


MSE = keras.losses.MeanSquaredError
CASES = {
    "learning rate": _learning_rate,
    "compute_metrics": lambda: _compiled(_net(kind=AfterUpdate)),
    "written in compute_metrics": lambda: _compiled(_net(kind=Counting)),
    "own metrics": lambda: _compiled(_net(kind=OwnTracker), None),
    "own weights": lambda: _compiled(_net(kind=LastLayerOnly)),
    "reset in the step": lambda: _compiled(_net(kind=ResetInStep)),
    "never reset": lambda: _compiled(_net(), metrics=[AcrossEpochs()]),
    "sum while training": lambda: _compiled(_net(SumWhileTraining())),
    "balance while training": lambda: _compiled(_net(BalanceWhileTraining())),
    "operations between rows": lambda: _compiled(_net(lambda h: h - ops.mean(h, axis=0, keepdims=True)), MSE()),
    "Lambda between rows": lambda: _compiled(_net(layers.Lambda(lambda h: h - ops.mean(h, axis=0))), MSE()),
    "Softmax between rows": lambda: _compiled(_net(layers.Softmax(axis=0)), MSE()),
    "activation between rows": lambda: _compiled(_net(layers.Activation(lambda h: h - ops.mean(h, 0))), MSE()),
    "last but one axis": lambda: _compiled(_net(layers.Softmax(axis=-2)), MSE()),
    "similarity of columns": lambda: _compiled(_net(), keras.losses.CosineSimilarity(axis=0)),
    "metric of columns": lambda: _compiled(_net(), metrics=[keras.metrics.CosineSimilarity(axis=0)]),
    "rank 1": _rank_1,
    "own state": lambda: _compiled(_net(OwnState())),
    "measured in a layer": lambda: _compiled(_net(Largest())),
    "stateful": _stateful,
    "extremes": lambda: _compiled(_net(), metrics=["mae", Extremes()]),
    "extremes, one row left": lambda: _compiled(_net(), metrics=["mae", Extremes()]),
    "extremes in a layer": lambda: _compiled(_net(MeasuresExtremes())),
    "extremes in the step": lambda: _compiled(_net(kind=ExtremesInStep)),
    "compiled extremes in the step": lambda: _compiled(_net(kind=MeasuresInStep), metrics=[Extremes()]),
    "extremes beside an own state": lambda: _compiled(_net(OwnState()), metrics=[Extremes()]),
    "largest from zero": lambda: _compiled(_net(), metrics=[FromZero(), OneInAnother()]),
    "best so far": lambda: _compiled(_net(), metrics=[BestSoFar()]),
}
_SIZES = {"stateful": 2, "extremes, one row left": 3}  # of batches
# On several replicas.
_NOT_MADE_OF_PARTS = "does not come to the same on parts of a batch|must be a mean over examples"
REFUSED = {
    **dict.fromkeys(
        (
            "sum while training", "balance while training", "operations between rows", "Lambda between rows",
            "Softmax between rows", "activation between rows", "last but one axis", "own state", "measured in a layer",
            "extremes beside an own state",
        ),
        _NOT_MADE_OF_PARTS,
    ),
    "own weights": "overrides trainable_weights",
    "written in compute_metrics": "compute_metrics of Counting writes",
    "never reset": "does not begin at zero",
    ("reset in the step", "mirrored"): "computes log now from what a metric has come to",
    ("reset in the step", "central"): "the state of metric of_step",
    "metric of columns": "the value of metric cosine_similarity for a batch is not the mean",
    "stateful": "was made with stateful=True",
    ("extremes in the step", "mirrored"): "updates metrics in their variables, which several replicas add up",
    ("compiled extremes in the step", "mirrored"): "updates metrics in their variables, which several replicas add up",
    "best so far": "does not add up: what a batch brings depends on what came before",
}  # fmt: skip


def trained(name, by, scope=contextlib.nullcontext, **options):
    """What a model has come to: weights, history, evaluation and predictions, by `by.fit`, Keras's or ours."""
    x, y = data()
    y = y[:, 0] if name == "rank 1" else y
    weights = np.arange(1.0, 11.0, dtype=np.float32) if name == "rank 1" else None
    size = _SIZES.get(name, BATCH)
    with scope():
        model = CASES[name]()
    fitted = by.fit(
        model, x, y, batch_size=size, epochs=EPOCHS, shuffle=False, sample_weight=weights, validation_data=(x, y),
        verbose=0, **options,
    )  # fmt: skip
    again = by.fit(model, x, y, batch_size=size, shuffle=False, sample_weight=weights, verbose=0, **options)
    score = by.evaluate(model, x, y, batch_size=size, return_dict=True, verbose=0)
    found = {"predictions": np.asarray(by.predict(model, x, batch_size=size, verbose=0))}
    found |= {f"weight {n}": keras.ops.convert_to_numpy(w) for n, w in enumerate(model.weights)}
    found |= {f"history {key}": np.asarray(values) for key, values in fitted.history.items()}
    found |= {f"again {key}": np.asarray(values) for key, values in again.history.items()}
    return found | {f"score {key}": np.asarray(value) for key, value in score.items()}


def read(out):
    """What the program has saved: what models have come to, or the message of a refusal, by their names."""
    return pickle.loads(pathlib.Path(out).read_bytes())


def main():
    import tf2dist
    from tf2dist.runtime import collectives

    updates_together = sys.argv[1] == "sync"
    strategy = tf2dist.join("ps" if updates_together else sys.argv[1])
    options = {"parameter_server": tf2dist.ParameterServer("sync")} if updates_together else {}
    results = {}
    for name in sys.argv[3:]:
        try:
            results[name] = trained(name, tf2dist, strategy.scope, **options)
        except (ValueError, tf2dist.errors.TrainingError) as error:
            results[name] = str(error)
    if collectives.peers(strategy)[1] == 0:
        pathlib.Path(sys.argv[2]).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
