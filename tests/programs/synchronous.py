"""Run in every process of a parameter server job: trains synchronously and saves what came out.

python -m tests.programs.synchronous OUT
"""

import json
import pathlib
import sys
import time

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.models import OPTIMIZERS, classifier, data, embedder, sentences, weighted, weights  # noqa: E402

SYNC = tf2dist.ParameterServer("sync")
results = {"weights": {}, "history": {}, "updates": {}}


def fit(name, model, rows, options=SYNC, **kwargs):
    kwargs = {"batch_size": 16, "seed": 3, "parameter_server": options} | kwargs
    history = tf2dist.fit(model, rows, **kwargs)
    results["weights"][name] = [w.tolist() for w in weights(model)]
    results["history"][name] = history.history
    results["updates"][name] = tf2dist.updates(model)


for optimizer, make in OPTIMIZERS.items():
    with strategy.scope():
        model = classifier(make())
    fit(optimizer, model, data(), epochs=5, steps_per_epoch=10, validation_data=data())
with strategy.scope():
    model = embedder(OPTIMIZERS["adagrad"]())
fit("slices", model, sentences(), epochs=2)
for name in ("sharded", "nested"):  # in the model, and in a model inside of it
    with strategy.scope():
        tables = []

        def sharded(*arguments, nested=name == "nested", tables=tables, **keywords):
            tables.append(tf2dist.layers.ShardedEmbedding(*arguments, **keywords))
            return keras.Sequential(tables) if nested else tables[0]

        model = embedder(OPTIMIZERS["adam"](), sharded)
    fit(name, model, sentences(), epochs=2)
    results["weights"][name] = [tables[0].get_table().tolist(), *results["weights"][name][-2:]]


class LooksAtAnother(keras.callbacks.Callback):
    """Uses another model on the same workers, between the epochs and the batches of this one."""

    def __init__(self, other):
        super().__init__()
        self.other, self.seen = other, []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(float(tf2dist.predict(self.other, data()[0]).sum()))
        tf2dist.fit(self.other, data(), batch_size=16, seed=3, parameter_server=SYNC)

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.seen.append(tf2dist.evaluate(self.other, data(), batch_size=16))


with strategy.scope():
    model, other = classifier(OPTIMIZERS["sgd"]()), classifier(OPTIMIZERS["momentum"]())
looks = LooksAtAnother(other)
fit("beside another", model, data(), epochs=2, callbacks=[looks])
results["seen of another"] = looks.seen
with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
fit("backup", model, data(), tf2dist.ParameterServer("sync", backup_workers=1), epochs=2, steps_per_epoch=40)

with strategy.scope():
    statistics = keras.layers.BatchNormalization(momentum=0.8)
    model = classifier(OPTIMIZERS["sgd"](), statistics)
    # So that what the layer gets depends on nothing that is trained.
    model.layers[0].trainable = False
    model.compile(model.optimizer, model.loss)
fit("statistics", model, data(), epochs=2, shuffle=False)
results["statistics"] = [np.asarray(v).tolist() for v in (statistics.moving_mean, statistics.moving_variance)]

with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"](), keras.layers.BatchNormalization(synchronized=True, name="together"))
try:
    fit("synchronized", model, data())
except ValueError as error:
    results["refused"] = str(error)

with strategy.scope():
    model, kinds = weighted()
for number, rows in enumerate(kinds):
    fit(f"kind {number}", model, rows, shuffle=False)

# Each update adds 1 to the weight of its batch's column. The first training leaves a gradient that is late.
BACKUP = tf2dist.ParameterServer("sync", backup_workers=1)
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(1.0), "mean_absolute_error")
for column in range(2):
    rows = np.tile(np.eye(2, dtype=np.float32)[column], (32, 1)), np.full((32, 1), 1000.0, np.float32)
    fit(f"late {column}", model, rows, BACKUP, epochs=4)
    time.sleep(1)

from tensorflow.python.distribute.coordinator.cluster_coordinator import Closure  # noqa: E402

from tf2dist.parameter_server import synchronous_update  # noqa: E402
from tf2dist.parameter_server.synchronous_update import SynchronousUpdate  # noqa: E402

made, broken = [], []
init, execute_on = SynchronousUpdate.__init__, Closure.execute_on


def note(self, *arguments):
    init(self, *arguments)
    made.append(self)


def break_once(self, worker):
    """Breaks the connection to worker 0 when its call has taken a token, and computes the gradient."""
    if made and worker.worker_index == 0 and not broken:
        with tf.device(made[0]._device):
            token = tf.raw_ops.QueueDequeueV2(handle=made[0]._token_queue(0), component_types=[tf.int64])
        broken.append(int(token[0]))
        raise tf.errors.CancelledError(None, None, "the connection to /job:worker/replica:0/task:0 was reset")
    execute_on(self, worker)


SynchronousUpdate.__init__, Closure.execute_on = note, break_once
with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
fit("interrupted", model, data(), epochs=2)
results["interrupted"] = len(broken)

# Slices that are left over in the queue, as those of a worker that was lost; and a token that is late.
with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
x, y = data()
batches = [(x[start : start + 16], y[start : start + 16]) for start in range(0, 96, 16)]
fit("sent", model, iter(batches), steps_per_epoch=6)
update, of_one_kind = made[-1], len(made)
wrong = [update.slices._last[0], *[tf.fill(tf.shape(t), tf.cast(2, t.dtype)) for t in update.slices._last[1:]]]
update.slices._put([wrong] * 3)
fit("sent", model, iter(batches), steps_per_epoch=6)
assert len(made) == of_one_kind
update.slices._last_call.assign(10)
update.slices._put([[tf.constant(about, tf.int64), *wrong[1:]] for about in ([9, 10], [10, 10])])
with tf.device(update._device):
    for token in (9, 10):
        update.slices.take(tf.constant(token, tf.int64))
        left = int(tf.raw_ops.QueueSizeV2(handle=update.slices._queue()))
        results[f"slices left by token {token}"] = left

# The parts of contributions on another server: of one that is late, and of a worker that was lost.
(other,) = update._others


def parts_left():
    with tf.device(other):
        return int(tf.raw_ops.MapSize(dtypes=update._dtypes[other], shared_name=update._parts_name))


def leave_parts(key):
    update._leave_parts(other, tf.constant(key, tf.int64), [tf.zeros([], dtype) for dtype in update._dtypes[other]])


def send_rest(token, key):
    rest = [tf.zeros([], dtype) for dtype in update._dtypes[update._device]]
    rest[0] = synchronous_update._as_words(tf.constant([token, 0, 0, key], tf.int64))
    with tf.device(update._device):
        tf.raw_ops.QueueEnqueueV2(handle=update._contributions(), components=rest)


@tf.function(autograph=False)
def take(number):
    """The key of the next contribution to this update, and how many came too late for it."""
    with tf.device(update._device):
        counts = tf.zeros([update._workers], tf.int32)
        taken, late = update._take_contribution(update._contributions(), number, tf.constant(0, tf.int64), counts)
        return synchronous_update._header(taken)[3], late


results["parts left"] = {"after training": parts_left()}
update._kept_from.assign(0)
for token, key in ((4, 17), (5, 18)):
    leave_parts(key)
    send_rest(token, key)
results["taken"] = [int(t) for t in take(tf.constant(5, tf.int64))]
results["parts left"]["by the late one"] = parts_left()
update.forget_parts()
results["parts left"]["when they were forgotten"] = parts_left()
number = update.number
send_rest(number - 1, 19)  # late, and its parts are gone: nobody waits for them
send_rest(number, 20)
results["taken behind one without parts"] = [int(t) for t in take(tf.constant(number, tf.int64))]
out.write_text(json.dumps(results))
