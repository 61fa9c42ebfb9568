"""https://github.com/keras-team/keras/issues/20585: TensorFlow's tutorial of several workers fails at once."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
images, labels = rng.random((120, 14, 14)).astype("float32"), rng.integers(0, 10, 120)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(120, seed=1, reshuffle_each_iteration=False)
dataset = dataset.repeat().batch(32)
model = keras.Sequential(
    [
        keras.Input((14, 14)),
        keras.layers.Reshape((14, 14, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=keras.optimizers.SGD(0.001),
    metrics=["accuracy"],
)
history = model.fit(dataset, epochs=3, steps_per_epoch=7, verbose=0)
score = {"updates": int(model.optimizer.iterations.numpy())}
