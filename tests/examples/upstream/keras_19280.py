"""https://github.com/keras-team/keras/issues/19280: metrics are sums over the replicas: accuracies above 1."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
labels = rng.integers(0, 10, 151)
images = rng.integers(0, 60, (151, 14, 14)).astype("uint8")
for image, label in zip(images, labels, strict=True):
    image[:, label : label + 3] += 190


def prepared(image, label):
    return tf.image.resize(tf.cast(image, tf.float32)[..., None] / 255, [16, 16]), tf.one_hot(label, 10)


dataset = tf.data.Dataset.from_tensor_slices((images, labels)).map(prepared)
dataset = dataset.shuffle(151, seed=1, reshuffle_each_iteration=False).batch(32)
inputs = keras.Input((16, 16, 1))
hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Flatten()(inputs))
model = keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(hidden))
model.compile(
    loss=keras.losses.CategoricalCrossentropy(),
    metrics=[keras.metrics.CategoricalAccuracy()],
    optimizer=keras.optimizers.Adam(),
)
history = model.fit(dataset, epochs=3, verbose=0)
score = model.evaluate(dataset, verbose=0, return_dict=True)
score["updates"] = int(model.optimizer.iterations.numpy())
assert 0.0 < history.history["categorical_accuracy"][-1] <= 1.0
