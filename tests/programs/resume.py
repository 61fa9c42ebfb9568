"""Run in every process of a job: trains with checkpoints, and goes on from them when it is run again.

python -m tests.programs.resume STRATEGY OUT
"""

import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join(sys.argv[1], replicas=2 if sys.argv[1] in ("mirrored", "central") else None)
out = pathlib.Path(sys.argv[2])

import keras  # noqa: E402

from tests.models import OPTIMIZERS, classifier, data, weights  # noqa: E402

EPOCHS, PER_EPOCH = 30, 40


class UnderWay(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 5:
            (out / "under_way").touch()
            while not (out / "go_on").exists():  # here it is killed, the first time
                pass


with strategy.scope():
    model = classifier(OPTIMIZERS["adam"]())
history = tf2dist.fit(
    model, data(), batch_size=16, seed=3, epochs=EPOCHS, steps_per_epoch=PER_EPOCH, steps_per_execution=10,
    callbacks=[tf2dist.Checkpoint(out / "checkpoints", every_steps=30), UnderWay()],
)  # fmt: skip
result = {
    "updates": tf2dist.updates(model),
    "epochs": len(history.history["loss"]),
    "weights": [w.tolist() for w in weights(model)],
}
resolver = getattr(strategy, "cluster_resolver", None)
if sys.argv[1] != "multiworker" or (resolver is not None and resolver.task_id == 0):
    (out / "result.json").write_text(json.dumps(result))
