"""Kills its worker 1 after the second epoch of its first run: python -m tests.programs.again STRATEGY DIR."""

import contextlib
import os
import pathlib
import signal
import sys

import keras
import numpy as np

import tf2dist
from tf2dist.system import linux

EPOCHS, STEPS, KILLED_AFTER = 30, 20, 1


class Kill(keras.callbacks.Callback):
    def __init__(self, directory):
        super().__init__()
        self.mark = directory / "killed"

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}", flush=True)
        if epoch == KILLED_AFTER and not self.mark.exists():
            self.mark.touch()
            for pid in linux.descendants(os.getppid()):
                with contextlib.suppress(OSError):  # one that has just ended
                    if pathlib.Path(f"/proc/{pid}/comm").read_text() == "worker 1\n":
                        os.kill(pid, signal.SIGKILL)


def main(name, directory):
    strategy = tf2dist.join(name)
    leads = '"index": 0' in os.environ["TF_CONFIG"]
    x = np.random.default_rng(0).random((EPOCHS * 10, 20), np.float32)
    y = (x.sum(1) > 10).astype(np.int64)
    with strategy.scope():
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(2)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = [tf2dist.Checkpoint(directory / "log", every_steps=STEPS, in_background=False)]
    callbacks += [Kill(directory)] if leads else []
    history = tf2dist.fit(
        model, (x, y), batch_size=10, epochs=EPOCHS, steps_per_epoch=STEPS, callbacks=callbacks, verbose=0
    )
    print(f"applied {tf2dist.updates(model)} in epochs from {history.epoch[0]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
