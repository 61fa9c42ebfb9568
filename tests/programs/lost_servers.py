"""Run in every process of a parameter server job: trains models, and kills parameter servers meanwhile.

python -m tests.programs.lost_servers OUT SEED JOBS CASE...

The cases are those of `tests.lost_server_cases`. In each, servers are killed in turn, at moments that follow from SEED;
JOBS is "ps", or "ps,worker" where a worker is killed with each server, and so on.
"""

import json
import os
import pathlib
import random
import signal
import sys
import threading
import time

import tf2dist

strategy = tf2dist.join("ps")
out, seed, jobs, names = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:]

import keras  # noqa: E402

from tests.lost_server_cases import CASES, EPOCHS, arguments, outcome  # noqa: E402
from tf2dist.runtime import session  # noqa: E402
from tf2dist.system import linux  # noqa: E402

servers = session.current().cluster.count("ps")


def pid_of(name):
    """The pid of a task; None while there is none."""
    for pid in linux.descendants(os.getppid()):
        try:
            if pathlib.Path(f"/proc/{pid}/comm").read_text() == f"{name}\n":
                return pid
        except OSError:
            continue
    return None


def unused_workers():
    """Those that are not used when they have had time to come back."""
    end = time.monotonic() + 60
    while (found := sorted(session.current().unused_workers())) and time.monotonic() < end:
        time.sleep(0.1)
    return found


class Kills(keras.callbacks.Callback):
    """Kills each server once, a moment after an epoch of its own has begun."""

    def __init__(self, moments):
        super().__init__()
        epochs = moments.sample(range(1, EPOCHS), servers)
        self.left = {epoch: (server, moments.random() / 20) for server, epoch in enumerate(epochs)}
        self.killed, self.begun = [], 0

    def on_train_begin(self, logs=None):
        self.begun += 1

    def on_epoch_begin(self, epoch, logs=None):
        if found := self.left.pop(epoch, None):
            threading.Thread(target=self.kill, args=found, daemon=True).start()

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.05)

    def kill(self, server, seconds):
        time.sleep(seconds)
        for job in jobs:
            os.kill(pid_of(f"{job} {server}"), signal.SIGKILL)
        self.killed.append(server)


found = {}
for name in names:
    make, rows, options, saving = CASES[name]
    with strategy.scope():
        model = make()
    kills = Kills(random.Random(f"{seed} {name}"))
    saved = tf2dist.Checkpoint(out / name, every_steps=10, **saving)
    history = tf2dist.fit(model, **arguments(rows()), epochs=EPOCHS, callbacks=[saved, kills], verbose=0, **options)
    found[name] = outcome(model, history) | {
        "killed": sorted(kills.killed), "begun": kills.begun, "updates": tf2dist.updates(model),
        "unused": unused_workers(),
    }  # fmt: skip
(out / "result.json").write_text(json.dumps(found))
