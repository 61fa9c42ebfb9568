"""https://github.com/keras-team/keras/issues/21172 and #21061: a loss of NaN, even of a model without weights."""

import keras
import numpy as np

x = np.ones((128 * 200, 1), "float32")
model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
model.compile(loss="mse", optimizer="sgd")
history = model.fit(x, np.zeros_like(x), batch_size=128, verbose=0)
assert history.history["loss"] == [1.0]
