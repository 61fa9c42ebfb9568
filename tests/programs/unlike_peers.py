"""Run in every peer of a job: makes calls with unlike lengths, and then alike ones.

python -m tests.programs.unlike_peers OUT

Prints what each call was refused with.
"""

import sys

import tf2dist
from tf2dist.cluster import environments

index = environments.from_environment().task.index
strategy = tf2dist.join("multiworker")

import keras  # noqa: E402

from tests.models import classifier, data  # noqa: E402
from tf2dist.errors import TrainingError, UsageError  # noqa: E402

x, y = data()
fewer = len(x) - 40 * index
with strategy.scope():
    model = classifier(keras.optimizers.SGD(0.1))
    other = classifier((keras.optimizers.Adam if index else keras.optimizers.SGD)(0.1))
CALLS = {
    "fit": lambda: tf2dist.fit(model, x[:fewer], y[:fewer], batch_size=16),
    "epochs": lambda: tf2dist.fit(model, x, y, batch_size=16, epochs=1 + index),
    "seed": lambda: tf2dist.fit(model, x, y, batch_size=16, seed=index),
    "validation": lambda: tf2dist.fit(model, x, y, batch_size=16, validation_data=(x[:fewer], y[:fewer])),
    "evaluate": lambda: tf2dist.evaluate(model, x, y, 16, steps=1 + index),
    "predict": lambda: tf2dist.predict(model, x[:fewer], 16),
    "optimizer": lambda: tf2dist.fit(other, x, y, batch_size=16),
    "checkpoint": lambda: tf2dist.fit(
        model, x, y, batch_size=16, callbacks=[] if index else [tf2dist.Checkpoint(sys.argv[1])]
    ),
    "functions": lambda: tf2dist.predict(model, x) if index else tf2dist.evaluate(model, x, y),
}
for name, call in CALLS.items():
    try:
        call()
    except UsageError as error:
        print(f"{name}: {error}", flush=True)


class StopsInOne(keras.callbacks.Callback):
    """As one that goes by a clock, or by a file that is seen in one peer before the others."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = index == 1 and epoch == 1


class SlowerInOne(keras.callbacks.Callback):
    """As what follows a plateau, given to one peer alone."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (1 + index * epoch)


tf2dist.fit(model, x, y, batch_size=16, epochs=9, callbacks=[StopsInOne()])
print(f"then: {tf2dist.updates(model)} updates", flush=True)
try:
    tf2dist.fit(model, x, y, batch_size=16, epochs=9, callbacks=[SlowerInOne()])
except TrainingError as error:
    print(f"rate: {error}", flush=True)
