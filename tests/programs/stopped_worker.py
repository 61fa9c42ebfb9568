"""Run in every process of a parameter server job, of which one worker is stopped for many executions of one epoch.

python -m tests.programs.stopped_worker OUT
"""

import json
import pathlib
import sys
import time

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

from tests.models import OPTIMIZERS, classifier, data  # noqa: E402

STOPPED_AT, WITHOUT, STEPS = 20, 40, 100


class Asks(tf2dist.ExecutionCallback):
    """Asks for worker 1 to be stopped, and after more executions than may be under way for it to go on."""

    executions = 0

    def on_train_batch_end(self, batch, logs=None):
        self.executions += 1
        if self.executions == STOPPED_AT:
            (out / "stop").touch()
            while not (out / "stopped").exists():
                time.sleep(0.01)
        if self.executions == STOPPED_AT + WITHOUT:
            (out / "go_on").touch()


with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
asks = Asks()
tf2dist.fit(model, data(), batch_size=4, steps_per_epoch=STEPS, steps_per_execution=1, callbacks=asks)
(out / "result.json").write_text(json.dumps({"updates": tf2dist.updates(model), "executions": asks.executions}))
