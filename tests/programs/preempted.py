"""Run in every process of a job: trains, and is asked to stop at chosen moments; saves what came out.

python -m tests.programs.preempted STRATEGY OUT [TASK:MOMENT ...]

TASK is "worker 0", or "solo" where there is one process. A MOMENT is a number of steps, after which an execution is
under way; or "validation" of the second epoch, "epoch end" of the fourth, "training end", "after" it, or "evaluation",
when a long one after the training is under way. Each moment comes once, in the first run that reaches it. STRATEGY
"sync" is ps with synchronous updates.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time

import tf2dist
from tf2dist.system import linux

name, out, moments = sys.argv[1], pathlib.Path(sys.argv[2]), [word.split(":") for word in sys.argv[3:]]
strategy = tf2dist.join(
    "ps" if name == "sync" else name, replicas=2 if name in ("mirrored", "central") else None
)  # fmt: skip

import keras  # noqa: E402
import numpy as np  # noqa: E402

from tests.models import OPTIMIZERS, classifier, data, weights  # noqa: E402

EPOCHS, PER_EPOCH = 6, 40


def pid_of(task):
    """Of the process of this job that the launcher has named so; this one where there is no launcher."""
    if task == "solo":
        return os.getpid()
    for pid in linux.descendants(os.getppid()):
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{pid}/comm").read_text() == f"{task}\n":
                return pid
    raise LookupError(task)


class Ask(tf2dist.ExecutionCallback):
    """Asks at each moment that has come and was not there before. In the process that leads."""

    def __init__(self):
        super().__init__()
        self.epoch, self.lock = 0, threading.Lock()
        self.asked = False  # in this run; a signal soon after another one is the same request

    def reached(self, moment):
        with self.lock:
            for task, wanted in () if self.asked else moments:
                mark = out / f"asked {task} {wanted}"
                due = wanted == moment or (isinstance(moment, int) and wanted.isdecimal() and int(wanted) <= moment)
                if due and not mark.exists():
                    mark.touch()
                    self.asked = True
                    os.kill(pid_of(task), signal.SIGTERM)
                    return

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        at = self.epoch * PER_EPOCH + batch
        if not self.asked:
            # While an execution is under way, which this process may wait for in C++.
            delay = random.Random(at).random() / 50
            threading.Thread(target=lambda: (time.sleep(delay), self.reached(at)), daemon=True).start()

    def on_test_batch_begin(self, batch, logs=None):
        if self.epoch == 1:
            self.reached("validation")

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch} ended", flush=True)
        if epoch == 3:
            self.reached("epoch end")

    def on_train_end(self, logs=None):
        self.reached("training end")


resolver = getattr(strategy, "cluster_resolver", None)
leads = name != "multiworker" or resolver.task_id == 0
with strategy.scope():
    model = classifier(OPTIMIZERS["adam"](), keras.layers.Dropout(0.2, seed=5))
ask = Ask()
tf2dist.fit(
    model, data(), batch_size=16, seed=3, epochs=EPOCHS, steps_per_epoch=PER_EPOCH, steps_per_execution=5,
    validation_data=data(1), validation_batch_size=2, verbose=0,
    callbacks=[tf2dist.Checkpoint(out / "checkpoints", every_steps=1000), *([ask] if leads else [])],
    parameter_server=tf2dist.ParameterServer("sync") if name == "sync" else None,
)  # fmt: skip
if leads:
    ask.reached("after")
if any(moment == "evaluation" for _, moment in moments):
    if leads:
        threading.Thread(target=lambda: (time.sleep(0.5), ask.reached("evaluation")), daemon=True).start()
    many = [np.repeat(array, 300, axis=0) for array in data()]
    tf2dist.evaluate(model, *many, batch_size=2, verbose=0)
logs = tf2dist.evaluate(model, data(1), return_dict=True, verbose=0)
if leads:
    result = {"updates": tf2dist.updates(model), "weights": [w.tolist() for w in weights(model)], "logs": logs}
    (out / "result.json").write_text(json.dumps(result))
