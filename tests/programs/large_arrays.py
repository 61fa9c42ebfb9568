"""Run in every process of a parameter server job: trains on large arrays, and notes the memory of the coordinator.

python -m tests.programs.large_arrays OUT MEGABYTES [async|sync]

The result has megabytes (2**20 bytes): of the arrays, resident before they are used, and at the highest after training,
evaluation and prediction; and seconds of the first training.
"""

import json
import pathlib
import sys
import time

import tf2dist

strategy = tf2dist.join("ps")
out, megabytes, update = pathlib.Path(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or ["async"])[0]

import keras  # noqa: E402
import numpy as np  # noqa: E402

from tests.memory import highest_memory  # noqa: E402

WIDTH, BATCH = 1024, 64  # bytes in a row; rows
rows = (megabytes << 20) // WIDTH


def peak() -> float:
    """The most memory that this process had so far, in megabytes."""
    return highest_memory() / (1 << 20)


def train(x, y):
    return tf2dist.fit(
        model, (x, y), batch_size=BATCH, epochs=1, steps_per_epoch=40, steps_per_execution=5, verbose=0,
        parameter_server=tf2dist.ParameterServer(update),
    ).history  # fmt: skip


with strategy.scope():
    inputs = keras.Input((WIDTH,), dtype="uint8")
    scaled = keras.layers.Rescaling(1 / 255)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(scaled))
    model.compile(keras.optimizers.SGD(1e-3), "mse")

x = np.arange(rows * WIDTH, dtype=np.uint8).reshape(rows, WIDTH)
x[:, 0] = np.arange(rows)
y = x[:, 0].astype(np.float32) / 255
few = slice(rows - 4 * BATCH, rows)
before = peak()
began = time.perf_counter()
history = train(x, y)
seconds = time.perf_counter() - began
evaluated = tf2dist.evaluate(model, x, y, batch_size=rows // 8, verbose=0)
expected = tf2dist.evaluate(model, x[few], y[few], batch_size=BATCH, verbose=0)
predicted = tf2dist.predict(model, x, batch_size=rows // 8, verbose=0)
result = {
    "arrays": (x.nbytes + y.nbytes) / 2**20,
    "before": before,
    "after": peak(),
    "seconds": seconds,
    "loss": history["loss"],
    "evaluated": evaluated,
    "few evaluated": expected,
    "predicted": bool(np.allclose(predicted[few], model(x[few]), atol=1e-5)) and len(predicted) == rows,
    "updates": tf2dist.updates(model),
}
(out / "result.json").write_text(json.dumps(result))
