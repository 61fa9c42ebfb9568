"""https://github.com/tensorflow/tensorflow/issues/87432: the loss is NaN from the 61st batch of an epoch on."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x, y = rng.random((512, 10)).astype("float32"), rng.random((512, 1)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32)
model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(dataset, epochs=2, steps_per_epoch=200, verbose=0)
score = {"updates": int(model.optimizer.iterations.numpy())}
