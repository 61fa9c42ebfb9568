"""Run in every process of a parameter server job, of which worker 1 is stopped in training, and in evaluation.

python -m tests.programs.stopped_worker OUT

All functions were called before: TensorFlow tells each worker about a new one, and waits for its answer.
"""

import json
import pathlib
import sys
import time

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.models import OPTIMIZERS, classifier, data  # noqa: E402

EPOCHS, STEPS = 4, 60


def ask(what):
    """Has the test stop worker 1, or have it go on."""
    (out / what).touch()
    while not (out / f"{what} done").exists():
        time.sleep(0.01)


class Asks(tf2dist.ExecutionCallback):
    """Has worker 1 stopped in the second epoch, and go on after the last but one."""

    epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, 19):
            ask("stop in training")

    def on_epoch_end(self, epoch, logs=None):
        if epoch == EPOCHS - 2:
            ask("go on in training")


class AsksInEvaluation(tf2dist.ExecutionCallback):
    """Has worker 1 stopped after the first batches of an evaluation."""

    asked = False

    def on_test_batch_end(self, batch, logs=None):
        if not self.asked:
            self.asked = True
            ask("stop in evaluation")


with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
x, y = data()
many = tf.data.Dataset.from_tensor_slices((x, y)).repeat(50).batch(8)
inputs = many.map(lambda x, y: x)


def evaluate(callbacks=None):
    return tf2dist.evaluate(model, many, callbacks=callbacks, return_dict=True, verbose=0)


def predict():
    return tf2dist.predict(model, inputs, verbose=0)


evaluate()
predict()
history = tf2dist.fit(
    model, (x, y), batch_size=4, epochs=EPOCHS, steps_per_epoch=STEPS, steps_per_execution=1, validation_data=(x, y),
    callbacks=Asks(), verbose=0,
)  # fmt: skip
evaluated, predicted = evaluate(AsksInEvaluation()), predict()
ask("go on in evaluation")
of_arrays = tf2dist.evaluate(model, x, y, batch_size=8, return_dict=True, verbose=0)
result = {
    "updates": tf2dist.updates(model),
    "validations": len(history.history["val_loss"]),
    "evaluated": evaluated,
    "of arrays": of_arrays,
    "predicted": bool(np.allclose(predicted, np.tile(keras.ops.convert_to_numpy(model(x)), (50, 1)), atol=1e-5)),
}
(out / "result.json").write_text(json.dumps(result))
