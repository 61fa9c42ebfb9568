"""https://github.com/keras-team/keras/issues/18624: under parameter servers the optimizer's counter fails on a worker
with several devices, for want of an aggregation; so does any strategy whose variables are in one place.
"""

import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(51, 4)).astype("float32")
y = x.sum(1, keepdims=True)

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
score = {"updates": int(model.optimizer.iterations.numpy())}
