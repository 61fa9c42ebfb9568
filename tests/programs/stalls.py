"""Run in every process of a job: trains, and stands still, or is slow, in one place.

python -m tests.programs.stalls STRATEGY OUT WHERE [TASK]

WHERE is "generator", "dataset" (of that generator) or "callback" of the TASK, which waits there for ever, in the first
run. "stopped": the test stops a task when the file `under_way` is there. "slow": traces, steps and a validation take
time, and none as long as a stall; the count of the batches to validate with takes longer than one, and moves. STRATEGY
"sync" is ps with synchronous updates.
"""

import json
import pathlib
import sys
import time

import tf2dist

name, out, where, task = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], " ".join(sys.argv[4:])
strategy = tf2dist.join("ps" if name == "sync" else name)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.models import OPTIMIZERS, classifier, data, weights  # noqa: E402
from tf2dist.cluster import environments  # noqa: E402

EPOCHS, PER_EPOCH = 4, 10
cluster = environments.from_environment()
this_task = str(cluster.task) if cluster else "solo"
leads = this_task in ("chief 0", "solo") or (name == "multiworker" and this_task == "worker 0")


def blocks_for_ever():
    while True:
        time.sleep(0.1)


def block_once(place):
    """Waits for ever, if this is the place and task and the first run."""
    mark = out / "has_stalled"
    if where == place and task == this_task and not mark.exists():
        mark.touch()
        blocks_for_ever()


def batches():
    x, y = data()
    number = 0
    while True:
        if number == 25:
            block_once("dataset" if where == "dataset" else "generator")
        if where == "slow":
            time.sleep(0.3)
        start = number * 16 % 96
        yield x[start : start + 16], y[start : start + 16]
        number += 1


def validation_batches():
    first = not validation_passes
    validation_passes.append(1)
    x, y = data(1)
    for start in range(0, len(x), 8):
        time.sleep(0.8 if first else 0.0)
        yield x[start : start + 8], y[start : start + 8]


validation_passes = []


class Callback(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and leads:
            (out / "under_way").touch()
            while where == "stopped" and not (out / "go_on").exists():
                time.sleep(0.01)

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            block_once("callback")


class SlowlyTraced(keras.layers.Layer):
    def call(self, x):
        if where == "slow":
            time.sleep(1.5)  # once for each trace
        return x


class SlowlyEvaluated(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        if where == "slow":
            time.sleep(0.3)


with strategy.scope():
    model = classifier(OPTIMIZERS["adam"](), SlowlyTraced())
slow = {}
spec = tuple(tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in data(1))
if where == "slow":
    slow["validation_data"] = tf.data.Dataset.from_generator(validation_batches, output_signature=spec)
if where == "dataset":
    arguments = {"x": tf.data.Dataset.from_generator(batches, output_signature=spec)}
else:
    arguments = {"x": batches()} if where in ("generator", "slow") else {"x": data(), "batch_size": 16, "seed": 3}
tf2dist.fit(
    model, **arguments, epochs=EPOCHS, steps_per_epoch=PER_EPOCH, steps_per_execution=1, verbose=0,
    callbacks=[tf2dist.Checkpoint(out / "checkpoints", every_steps=5), Callback(), SlowlyEvaluated()], **slow,
    parameter_server=tf2dist.ParameterServer("sync") if name == "sync" else None,
)  # fmt: skip
if leads:
    result = {"updates": tf2dist.updates(model), "weights": [w.tolist() for w in weights(model)]}
    (out / "result.json").write_text(json.dumps(result))
