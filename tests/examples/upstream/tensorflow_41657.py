"""https://github.com/tensorflow/tensorflow/issues/41657: NaN where a replica has no row of a batch."""

import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(7, 3)).astype("float32")
y = x.sum(1, keepdims=True)


def mean_of_batch(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred))


model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), mean_of_batch, metrics=["mae"])
history = model.fit(x, y, batch_size=2, epochs=3, shuffle=False, verbose=0)  # the last batch has one row
score = {"updates": int(model.optimizer.iterations.numpy())}
assert np.isfinite(history.history["loss"]).all(), "loss of NaN"
