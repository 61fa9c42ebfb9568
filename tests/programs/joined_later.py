"""Run in every process of a parameter server job whose workers come and go: trains until it is told to stop.

python -m tests.programs.joined_later OUT async|dataset|sync

After each epoch OUT/state.json says how many steps each worker has made, and which workers are not used. It ends after
the epoch in which it finds a file OUT/finish.
"""

import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join("ps")
out, way = pathlib.Path(sys.argv[1]), sys.argv[2]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.custom_step_cases import OwnUpdate, batches, dense  # noqa: E402
from tests.models import data  # noqa: E402
from tf2dist.runtime import session  # noqa: E402

WORKERS, PER_EPOCH = 3, 20


class Counting(OwnUpdate):
    """Counts the steps of each worker."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps = tf.Variable(tf.zeros([WORKERS], tf.int64))

    def change(self, x, y, gradients):
        here = tf.distribute.coordinator.experimental_get_current_worker_index()
        tf.raw_ops.ResourceScatterAdd(resource=self.steps.handle, indices=here, updates=tf.constant(1, tf.int64))
        return super().change(x, y, gradients)


class Tells(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        steps = [] if way == "sync" else self.model.steps.numpy().tolist()
        state = {"epoch": epoch, "steps": steps, "unused": sorted(session.current().unused_workers())}
        (out / "new").write_text(json.dumps(state))
        (out / "new").rename(out / "state.json")
        self.model.stop_training = (out / "finish").exists()


x, _ = data()
y = x[:, :1]
with strategy.scope():
    inputs = keras.Input((12,))
    kind = keras.Model if way == "sync" else Counting
    model = kind(inputs, dense(1, 9)(inputs))
    model.compile(keras.optimizers.SGD(0.01), "mse")
rows = batches((x, y), 4).repeat() if way == "dataset" else x
labels = {} if way == "dataset" else {"y": y, "batch_size": 4}
options = tf2dist.ParameterServer(*(["sync"] if way == "sync" else []))
history = tf2dist.fit(
    model, rows, **labels, epochs=10000, steps_per_epoch=PER_EPOCH, callbacks=[Tells()], verbose=0,
    parameter_server=options,
)  # fmt: skip
epochs = len(history.history["loss"])
result = {"updates": tf2dist.updates(model), "asked": epochs * PER_EPOCH, "last": history.history["loss"][-1]}
result["predicted"] = float(np.square(tf2dist.predict(model, x) - y).mean())
(out / "result.json").write_text(json.dumps(result))
