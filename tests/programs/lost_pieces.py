"""Run in every process of a parameter server job: something happens to worker 1 while arrays are sent to it.

python -m tests.programs.lost_pieces OUT async|sync PIECES

PIECES are what worker 1 is sent in all, those that are lost included.

It trains twice on new arrays, the second time so that TensorFlow needs no new function, of which it would tell all
workers while one is stopped.
"""

import json
import pathlib
import sys
import threading
import time

import tf2dist

strategy = tf2dist.join("ps")
out, update, pieces = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

import keras  # noqa: E402
import numpy as np  # noqa: E402

from tf2dist.parameter_server import worker_pool  # noqa: E402

ROWS, WIDTH, EPOCHS, STEPS = 1 << 16, 640, 4, 20  # 40 MB, in pieces of 8
sent = {0: 0, 1: 0}  # pieces, by worker
asked = watched = False


def ask(what):
    """Has the test do something to worker 1."""
    (out / what).touch()
    while not (out / f"{what} done").exists():
        time.sleep(0.01)


class WatchedPieces(worker_pool.ArrayPieces):
    """Asks when two pieces were sent to worker 1, in its thread."""

    def __iter__(self):
        global asked
        worker = int(threading.current_thread().name.rpartition("-")[2])
        for piece in super().__iter__():
            if watched and worker == 1 and sent[1] == 2 and not asked:
                asked = True
                ask("two pieces sent")
            yield piece
            sent[worker] += watched


class Waits(keras.callbacks.Callback):
    """Says when an epoch has ended while worker 1 lacks its pieces; has the last one begin when it has got them."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            result["to worker 1 in epoch 1"] = sent[1]
            ask("two epochs ended")
        if epoch == EPOCHS - 2:
            while sent[1] < pieces:
                time.sleep(0.05)


def train(epochs, *callbacks):
    x = np.random.default_rng(0).integers(0, 255, (ROWS, WIDTH), np.uint8)
    return tf2dist.fit(
        model, (x, x[:, :1] / np.float32(255)), batch_size=64, epochs=epochs, steps_per_epoch=STEPS,
        steps_per_execution=5, callbacks=[*callbacks], parameter_server=options, verbose=0,
    )  # fmt: skip


worker_pool.ArrayPieces = WatchedPieces
result = {}
with strategy.scope():
    inputs = keras.Input((WIDTH,), dtype="uint8")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Rescaling(1 / 255)(inputs)))
    model.compile(keras.optimizers.SGD(1e-4), "mse")
options = tf2dist.ParameterServer(update, **({"backup_workers": 1} if update == "sync" else {}))
train(1)
watched = True
before = tf2dist.updates(model)
history = train(EPOCHS, Waits())
result |= {"updates": tf2dist.updates(model) - before, "epochs": len(history.history["loss"]), "sent": [*sent.values()]}
(out / "result.json").write_text(json.dumps(result))
