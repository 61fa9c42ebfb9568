"""https://github.com/tensorflow/tensorflow/issues/61129: lines of files of unlike lengths, each once an epoch,
without a number of steps that has to be guessed.
"""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
directory = tempfile.TemporaryDirectory()
files = []
for number, lines in enumerate((21, 3, 40, 1)):
    rows = rng.normal(size=(lines, 3))
    text = "\n".join(",".join(f"{value:.4f}" for value in (*row, float(row.sum() > 0))) for row in rows)
    files.append(str(pathlib.Path(directory.name) / f"{number}.csv"))
    pathlib.Path(files[-1]).write_text(f"a,b,c,label\n{text}\n")


def parsed(line):
    fields = tf.stack(tf.io.decode_csv(line, [0.0] * 4))
    return fields[:3], fields[3:]


dataset = tf.data.Dataset.from_tensor_slices(files)
dataset = dataset.interleave(lambda file: tf.data.TextLineDataset(file).skip(1), cycle_length=4, num_parallel_calls=4)
dataset = dataset.map(parsed).batch(16)


class Rows(keras.metrics.Metric):
    """How many rows it has seen."""

    def __init__(self, name="rows"):
        super().__init__(name=name)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

    def result(self):
        return self.total


model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=[Rows(), "AUC"])
history = model.fit(dataset, epochs=3, validation_data=dataset, verbose=0)
more = dataset.repeat()
again = model.fit(more, epochs=2, steps_per_epoch=4, verbose=0)  # the last batch of a pass has one row
score = {"rows of more": again.history["rows"]}
directory.cleanup()
