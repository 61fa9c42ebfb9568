"""Run in every process of a parameter server job: trains a model whose weights say which batches were applied.

python -m tests.programs.counted_batches OUT [SECONDS]

A batch's rows have one word; each of its updates adds 1 to the word's row of two tables, and to a bias, and takes
SECONDS or so on the worker.
"""

import json
import pathlib
import sys

import tf2dist

strategy = tf2dist.join("ps")
out, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

WORDS, UPDATES, BATCH = 8, 40, 4


class Slow(keras.layers.Layer):
    """Adds a zero that takes long to compute."""

    def call(self, inputs):
        left, square = tf.constant(int(seconds * 100)), tf.eye(600) * tf.reduce_mean(inputs)
        _, square = tf.while_loop(lambda n, s: n > 0, lambda n, s: (n - 1, 0.0 * s @ s), (left, square))
        return inputs + tf.stop_gradient(0.0 * square[0, 0])


class UnderWay(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch >= WORDS:
            (out / "under_way").touch()


with strategy.scope():
    words = keras.Input((), dtype="int64")
    tables = [keras.layers.Embedding(WORDS, 1, embeddings_initializer="zeros") for _ in range(2)]
    total = keras.layers.Add()([table(words) for table in tables])
    total = Slow()(keras.layers.Dense(1, kernel_initializer="ones")(total))
    model = keras.Model(words, total)
    model.layers[-2].kernel.trainable = False
    model.compile(keras.optimizers.SGD(1.0), "mean_absolute_error")
x = np.repeat(np.arange(WORDS), BATCH)
tf2dist.fit(
    model,
    (x, np.full((len(x), 1), 1e6, np.float32)),
    batch_size=BATCH,
    steps_per_epoch=UPDATES,
    callbacks=[UnderWay()],
    shuffle=False,
    verbose=0,
)
applied = [float(np.sum(v)) for v in model.trainable_variables]
(out / "result.json").write_text(json.dumps({"updates": tf2dist.updates(model), "applied": applied}))
