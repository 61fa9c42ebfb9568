"""Image similarity with a Siamese network and contrastive loss
(https://keras.io/examples/vision/siamese_contrastive/): made-up digits of a few strokes.
"""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
num_digits, margin, batch_size = 4, 1, 32

# Digits are noisy pictures of one pattern each.
rng = np.random.default_rng(0)
patterns = rng.integers(0, 2, (num_digits, 12, 12))
digits = np.repeat(np.arange(num_digits), 20)
images = (patterns[digits] + rng.normal(0, 0.4, (len(digits), 12, 12))).astype("float32")


def make_pairs(images, digits):
    """A pair of the same digit, label 0, and one of different digits, label 1, for each image."""
    pairs, labels = [], []
    for image, digit in zip(images, digits, strict=True):
        for label, others in enumerate([digits == digit, digits != digit]):
            pairs.append([image, images[rng.choice(np.flatnonzero(others))]])
            labels.append(label)
    order = rng.permutation(len(pairs))
    return np.array(pairs)[order], np.array(labels, "float32")[order]


pairs, labels = make_pairs(images, digits)
x_train, y_train = [pairs[:110, 0], pairs[:110, 1]], labels[:110]
x_val, y_val = [pairs[110:135, 0], pairs[110:135, 1]], labels[110:135]
x_test, y_test = [pairs[135:, 0], pairs[135:, 1]], labels[135:]


class Distance(layers.Layer):
    """How far the two vectors of each pair are from each other."""

    def call(self, vectors):
        x, y = vectors
        sum_square = ops.sum(ops.square(x - y), axis=1, keepdims=True)
        # The root has no slope at zero.
        return ops.sqrt(ops.maximum(sum_square, keras.config.epsilon()))


def shared_tower():
    inputs = keras.Input((12, 12, 1))
    x = layers.BatchNormalization()(inputs)
    x = layers.Conv2D(4, (5, 5), activation="tanh")(x)
    x = layers.AveragePooling2D(pool_size=(2, 2))(x)
    x = layers.Conv2D(8, (3, 3), activation="tanh")(x)
    x = layers.AveragePooling2D(pool_size=(2, 2))(x)
    x = layers.Flatten()(x)
    x = layers.BatchNormalization()(x)
    return keras.Model(inputs, layers.Dense(10, activation="tanh")(x))


def contrastive_loss(margin=1):
    """The loss for a margin beyond which different images are far enough from each other."""

    def loss(y_true, y_pred):
        square_pred = ops.square(y_pred)
        margin_square = ops.square(ops.maximum(margin - y_pred, 0))
        return ops.mean((1 - y_true) * square_pred + y_true * margin_square)

    return loss


embedding_network = shared_tower()
input_1, input_2 = keras.Input((12, 12, 1)), keras.Input((12, 12, 1))
distance = Distance()([embedding_network(input_1), embedding_network(input_2)])  # weights are shared
normalized = layers.BatchNormalization()(distance)
model = keras.Model(inputs=[input_1, input_2], outputs=layers.Dense(1, activation="sigmoid")(normalized))

model.compile(loss=contrastive_loss(margin=margin), optimizer=keras.optimizers.RMSprop(0.003), metrics=["accuracy"])
history = model.fit(
    x_train, y_train, validation_data=(x_val, y_val), batch_size=batch_size, epochs=3, shuffle=False, verbose=0
)
score = model.evaluate(x_test, y_test, verbose=0, return_dict=True)
predicted = model.predict(x_test, verbose=0)
