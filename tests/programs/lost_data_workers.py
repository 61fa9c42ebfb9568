"""Run in every process of a job with data workers: reads passes, and trains, while data workers are killed.

python -m tests.programs.lost_data_workers STRATEGY DIRECTORY
"""

import json
import pathlib
import sys
import time

import tf2dist

strategy = tf2dist.join(sys.argv[1])
directory = pathlib.Path(sys.argv[2])

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

ROWS, EPOCHS, BATCH = 2000, 6, 50


def slowly(number):
    """The number, after some milliseconds of work."""
    matrix = tf.eye(60) + tf.cast(number, tf.float32)
    return number + tf.cast(tf.reduce_sum(tf.linalg.eigvalsh(matrix)) * 0, tf.int64)


def tell_and_wait(name):
    """Has the test kill a data worker, and goes on when it has."""
    (directory / name).touch()
    while not (directory / f"{name} killed").exists():
        time.sleep(0.02)


numbers = tf2dist.DataService().distribute(tf.data.Dataset.range(ROWS).map(slowly))
passes = []
for number in range(2):
    read = []
    for each in numbers.as_numpy_iterator():
        read.append(int(each))
        if number == 0 and len(read) == 300:
            tell_and_wait("reads")
    passes.append(read)


def tell(epoch, logs):
    if epoch == 1:
        tell_and_wait("trains")


with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-9), "mse")
pairs = numbers.map(lambda n: (tf.cast([n], tf.float32), tf.zeros([1]))).batch(BATCH)
history = tf2dist.fit(
    model, pairs, epochs=EPOCHS, verbose=0, callbacks=keras.callbacks.LambdaCallback(on_epoch_end=tell)
)
results = {"passes": passes, "updates": tf2dist.updates(model), "epochs": len(history.epoch)}
(directory / "results.json").write_text(json.dumps(results))
