"""Run in every process of a parameter server job: trains for a while and reports; says when it is well under way.

python -m tests.programs.long OUT [EPOCH [BACKUP_WORKERS [training_only]]]

EPOCH is after which it is well under way (2); with a number of backup workers updates are synchronous. An epoch is
validated unless the last word is there.
"""

import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

import keras  # noqa: E402

from tests.models import OPTIMIZERS, classifier, data  # noqa: E402

after, backups, *_ = [*(int(word) for word in sys.argv[2:] if word.isdecimal()), None, None]
EPOCHS, PER_EPOCH = 8 if backups == 0 else 20, 60  # updates that wait for all are slow


class UnderWay(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == (2 if after is None else after):
            (out / "under_way").touch()


with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
options = None if backups is None else tf2dist.ParameterServer("sync", backup_workers=backups)
history = tf2dist.fit(
    model,
    data(),
    batch_size=4,
    epochs=EPOCHS,
    steps_per_epoch=PER_EPOCH,
    validation_data=None if "training_only" in sys.argv else data(),
    callbacks=[UnderWay()],
    steps_per_execution=5,
    parameter_server=options,
)
result = {"updates": tf2dist.updates(model), "epochs": len(history.history["loss"]), "history": history.history}
(out / "result.json").write_text(json.dumps(result))
