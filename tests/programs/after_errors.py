"""Run in every process of a parameter server job: calls of `fit` and `evaluate` after one that has failed.

python -m tests.programs.after_errors OUT UPDATE

Saves what they came to, beside what a model comes to that has seen no error. A model's weights are how many times it
was trained on each of its batches.
"""

import json
import pathlib
import signal
import sys
import time

import tf2dist

strategy = tf2dist.join("ps")
out, update = pathlib.Path(sys.argv[1]), sys.argv[2]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.models import data, weights  # noqa: E402

BATCHES, STEPS, LONG = 16, 40, 10_000_000
OPTIONS = {"verbose": 0, "shuffle": False, "parameter_server": tf2dist.ParameterServer(update)}
results = {}


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise RuntimeError("enough")


class Interrupts(keras.callbacks.Callback):
    """Ctrl-C in ten seconds, while the coordinator waits for an execution that takes for ever."""

    def on_epoch_begin(self, epoch, logs=None):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.alarm(10)


def counts():
    """A model each update of which adds 1 to its batch's weight."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((BATCHES,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        # A whole update is under a mutex, which one that is cancelled must not keep.
        optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.0, ema_overwrite_frequency=1)
        model.compile(optimizer, lambda _, outputs: -keras.ops.sum(outputs, axis=-1))
    return model


def failing(function, *args, **kwargs):
    """The name of the error that the call must fail with, and its seconds."""
    began = time.monotonic()
    try:
        function(*args, **kwargs)
    except BaseException as error:
        return type(error).__name__, time.monotonic() - began
    return None


def rows(bad=None):
    """Batches of one row; the values of one of them are no numbers, which a check finds."""
    x = np.eye(BATCHES, dtype=np.float32)
    if bad is not None:
        x[bad] = np.nan
    examples = tf.data.Dataset.from_tensor_slices((x, np.zeros(BATCHES, np.float32))).batch(1)
    return examples.map(lambda x, y: (tf.debugging.check_numerics(x, "bad"), y)).repeat()


def endless():
    """Rows that workers read by themselves: what the coordinator sends them is sent in parts."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return rows().with_options(options)


def note(name, model, error):
    """Trains a model that has failed before, and notes how."""
    left = weights(model)
    time.sleep(0.5)
    still = all(np.array_equal(a, b) for a, b in zip(left, weights(model), strict=True))
    model.set_weights([np.zeros_like(w) for w in left])
    before, began = tf2dist.updates(model), time.monotonic()
    history = tf2dist.fit(model, rows(), epochs=2, steps_per_epoch=STEPS, **OPTIONS)
    results[name] = {
        "error": error,
        "applied": float(np.sum(left)),
        "still": still,
        "weights": weights(model)[0][:, 0].tolist(),
        "updates": tf2dist.updates(model) - before,
        "epochs": len(history.history["loss"]),
        "seconds": time.monotonic() - began,
    }


model = counts()
many = {"steps_per_epoch": 50 * STEPS, "steps_per_execution": 10 * STEPS}
note("callback", model, failing(tf2dist.fit, model, rows(), callbacks=[Fails()], **many, **OPTIONS))
if update == "async":  # a synchronous coordinator takes part in an execution and cannot be interrupted in it
    long = {"steps_per_epoch": LONG, "steps_per_execution": LONG}
    note("interrupted", model, failing(tf2dist.fit, model, endless(), callbacks=[Interrupts()], **long, **OPTIONS))
note("bad data", model, failing(tf2dist.fit, model, rows(11), **many, **OPTIONS))
note("bad evaluation", model, failing(tf2dist.evaluate, model, rows(11), steps=BATCHES, verbose=0))
failing(tf2dist.evaluate, model, rows(11), steps=BATCHES, verbose=0)
results["evaluated"] = tf2dist.evaluate(model, rows(), steps=BATCHES, verbose=0)


def linear():
    with strategy.scope():
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(1e20), "mse")
    return model


model, unspoilt = linear(), linear()
initial = model.get_weights()
spoilt = {"steps_per_epoch": 500, "steps_per_execution": 100}
results["nan"] = failing(tf2dist.fit, model, data(), batch_size=16, **spoilt, **OPTIONS)
model.set_weights(initial)
for name, each in {"after nan": model, "unspoilt": unspoilt}.items():
    each.optimizer.learning_rate = 0.01
    history = tf2dist.fit(each, data(), batch_size=16, epochs=2, **OPTIONS).history
    results[name] = [[w.tolist() for w in weights(each)], history]
out.write_text(json.dumps(results))
