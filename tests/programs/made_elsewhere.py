"""Trains on mirrored with batches that other processes make, until it is ended.

python -m tests.programs.made_elsewhere OUT [group]

With "group" it ends all its processes after an epoch, as platforms do.
"""

import multiprocessing
import os
import pathlib
import signal
import sys

import tf2dist

strategy = tf2dist.join("mirrored", replicas=2)
out = pathlib.Path(sys.argv[1])

import keras  # noqa: E402

from tests.models import OPTIMIZERS, classifier, data  # noqa: E402


def make(pipe):
    x, y = data()
    while True:
        pipe.send((x[:16], y[:16]))


def batches():
    pipes = []
    for _ in range(2):
        here, there = multiprocessing.Pipe(duplex=False)
        multiprocessing.get_context("fork").Process(target=make, args=(there,), daemon=True).start()
        there.close()  # so that the end of the process is the end of its batches
        pipes.append(here)
    while True:
        yield from (pipe.recv() for pipe in pipes)


class UnderWay(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        (out / "under_way").touch()
        if sys.argv[2:] and not epoch:
            os.killpg(0, signal.SIGTERM)


with strategy.scope():
    model = classifier(OPTIMIZERS["adam"]())
tf2dist.fit(
    model, batches(), epochs=100_000, steps_per_epoch=20, verbose=0,
    callbacks=[tf2dist.Checkpoint(out / "checkpoints"), UnderWay()],
)  # fmt: skip
