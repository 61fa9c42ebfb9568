"""Run in every process of a parameter server job: trains a model, and kills its own coordinator meanwhile.

python -m tests.programs.lost_coordinator OUT SEED KILLS WHEN CASE

The case is one of `tests.lost_server_cases`. The first KILLS coordinators kill themselves, at moments that follow from
SEED: shortly after a step, or, with WHEN "epoch", when they are told of the end of an epoch.
"""

import json
import os
import pathlib
import random
import signal
import sys
import threading

import tf2dist

strategy = tf2dist.join("ps")
out, seed, kills, when, name = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]

import keras  # noqa: E402

from tests.lost_server_cases import CASES, EPOCHS, PER_EPOCH, arguments, outcome  # noqa: E402

notes = out / "notes.json"  # at which step each coordinator has begun, and how far it knew to have come
known = json.loads(notes.read_text()) if notes.exists() else {"begun": [], "reached": []}
attempt = len(known["begun"])
moments = random.Random(f"{seed} {name} {attempt}")
# In one of the epochs that this attempt is to make, not at its end.
kill_epoch = moments.randint(attempt * EPOCHS // (kills + 1) + 1, (attempt + 1) * EPOCHS // (kills + 1) - 1)
kill_batch = moments.randint(0, PER_EPOCH // 2)


def note():
    notes.with_suffix(".part").write_text(json.dumps(known))
    os.replace(notes.with_suffix(".part"), notes)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


class Kill(keras.callbacks.Callback):
    """Kills this process."""

    def on_epoch_begin(self, epoch, logs=None):
        if len(known["begun"]) == attempt:
            known["begun"].append(tf2dist.updates(self.model))
            note()
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if when == "step" and attempt < kills and (self.epoch, batch) == (kill_epoch, kill_batch):
            known["reached"].append(self.epoch * PER_EPOCH + batch + 1)
            note()
            threading.Timer(moments.random() / 200, kill).start()

    def on_epoch_end(self, epoch, logs=None):
        if when == "epoch" and attempt < kills and epoch == kill_epoch:
            kill()


make, rows, options, saving = CASES[name]
with strategy.scope():
    model = make()
saved = tf2dist.Checkpoint(out / "saved", every_steps=10_000, **saving)
history = tf2dist.fit(model, **arguments(rows()), epochs=EPOCHS, callbacks=[saved, Kill()], verbose=0, **options)
found = outcome(model, history) | known | {"updates": tf2dist.updates(model)}
(out / "result.json").write_text(json.dumps(found))
