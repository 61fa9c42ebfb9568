"""Run in every process of a job with data workers: how often is each element used, by `fit` and by itself?

python -m launch local --ps=1 --workers=2 --data_workers=2 -- tests.programs.data_service STRATEGY OUT
"""

import json
import logging
import os
import pathlib
import sys

import tf2dist

strategy = tf2dist.join(sys.argv[1])
out = pathlib.Path(sys.argv[2])

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tf2dist.errors import UsageError  # noqa: E402

BATCH, ROWS, EPOCHS = 16, 96, 3
logging.getLogger("tf2dist").setLevel(logging.INFO)
results = {}


def counter():
    """Its weights become how often each example was seen, times a constant."""
    model = keras.Sequential([keras.Input((ROWS,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(1.0), lambda y, y_pred: -keras.ops.mean(y_pred, axis=-1))
    return model


def row(number):
    return tf.one_hot(number, ROWS), tf.zeros([1])


def counted(dataset, **arguments):
    """How often `fit` has used each row in `EPOCHS` passes."""
    with strategy.scope():
        model = counter()
    tf2dist.fit(model, dataset, epochs=EPOCHS, verbose=0, **arguments)
    return (model.layers[0].kernel.numpy()[:, 0] * BATCH).tolist()


service = tf2dist.DataService()
numbers = tf.data.Dataset.range(ROWS).shuffle(ROWS)
batches = service.distribute(numbers.map(row)).batch(BATCH)
results["rows"] = counted(batches)
if sys.argv[1] == "ps":
    results["rows, sync"] = counted(batches, parameter_server=tf2dist.ParameterServer("sync"))
with strategy.scope():
    model = counter()
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.layers[0].kernel.assign(np.arange(ROWS, dtype=np.float32)[:, np.newaxis])
results["evaluated"] = tf2dist.evaluate(model, batches, verbose=0)

by_python = numbers.map(lambda n: tf.ensure_shape(tf.numpy_function(lambda i: i, [n], tf.int64), []))
results["rows, python"] = counted(service.distribute(by_python.map(row)).batch(BATCH))
for name, dataset in {"processes": numbers, "processes, python": by_python}.items():
    made_by = service.distribute(dataset.map(lambda n: tf.strings.split(tf.io.read_file("/proc/self/stat"))[0]))
    results[name] = sorted({int(pid) for pid in made_by.as_numpy_iterator()})
results["this process"] = os.getpid()

words = service.distribute(numbers.map(lambda n: (n, tf.range(n % 5), tf.strings.as_string(n))))
results["unlike shapes"] = sorted([int(n), r.tolist(), text.decode()] for n, r, text in words.as_numpy_iterator())
try:
    tf2dist.predict(model, service.distribute(numbers.map(lambda n: row(n)[0])).batch(BATCH), verbose=0)
except UsageError as error:
    results["predicted"] = str(error)
try:
    service.distribute(numbers.batch(BATCH))
except UsageError as error:
    results["batched before"] = str(error)
out.write_text(json.dumps(results))
