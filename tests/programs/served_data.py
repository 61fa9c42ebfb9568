"""Run in every process of a parameter server job: trains on a generator while a worker is killed.

python -m tests.programs.served_data DIRECTORY UPDATE
"""

import itertools
import json
import pathlib
import sys
import time

import tf2dist

strategy = tf2dist.join("ps")
directory = pathlib.Path(sys.argv[1])

import keras  # noqa: E402

from tests.input.python_kinds import endless  # noqa: E402
from tests.models import OPTIMIZERS, classifier  # noqa: E402

EPOCHS, STEPS = 12, 20
yielded = 0


def slowly():
    """As many batches as are to be used under asynchronous updates, and no end of them under synchronous ones."""
    global yielded
    for batch in itertools.islice(endless(), EPOCHS * STEPS if sys.argv[2] == "async" else None):
        time.sleep(0.02)  # so that a worker dies in the middle
        yielded += 1
        yield batch


def tell(epoch, logs):
    if epoch == 2:
        (directory / "under_way").write_text("")


with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
history = tf2dist.fit(
    model, slowly(), epochs=EPOCHS, steps_per_epoch=STEPS, steps_per_execution=2,
    callbacks=keras.callbacks.LambdaCallback(on_epoch_end=tell), parameter_server=tf2dist.ParameterServer(sys.argv[2]),
)  # fmt: skip
result = {"updates": tf2dist.updates(model), "epochs": len(history.epoch), "yielded": yielded}
(directory / "result.json").write_text(json.dumps(result))
