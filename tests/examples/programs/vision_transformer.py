"""Image classification with Vision Transformer
(https://keras.io/examples/vision/image_classification_with_vision_transformer/): made-up images of colored squares.
"""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
num_classes, input_shape = 9, (12, 12, 3)
side, width, num_heads, blocks = 4, 16, 2, 2
places = (input_shape[0] // side) ** 2

# The class of an image is the patch in which it has a red square: a question of position, which attention cannot see.
rng = np.random.default_rng(0)
labels = rng.integers(0, num_classes, 150)
images = rng.uniform(0, 150, (150, *input_shape))
for image, label in zip(images, labels, strict=True):
    row, column = side * (label // 3), side * (label % 3)
    image[row : row + side, column : column + side] = 255, 0, 0
images, labels = images.astype("float32"), labels[:, np.newaxis]
x_train, y_train, x_test, y_test = images[:110], labels[:110], images[110:], labels[110:]


class CutIntoSquares(layers.Layer):
    """Cuts images into squares, a row of numbers each."""

    def __init__(self, side, **kwargs):
        super().__init__(**kwargs)
        self.side = side

    def call(self, images):
        patches = ops.image.extract_patches(images, size=self.side)
        return ops.reshape(patches, (ops.shape(images)[0], -1, patches.shape[-1]))


class EncodeSquares(layers.Layer):
    """Projects patches, and adds to each a vector that is learned for its position."""

    def __init__(self, places, width, **kwargs):
        super().__init__(**kwargs)
        self.places = places
        self.projection = layers.Dense(width)
        self.position_embedding = layers.Embedding(input_dim=places, output_dim=width)

    def call(self, patches):
        positions = ops.expand_dims(ops.arange(0, self.places), axis=0)
        return self.projection(patches) + self.position_embedding(positions)


def mlp(x, hidden_units):
    for units in hidden_units:
        x = layers.Dense(units, activation=keras.activations.gelu)(x)
    return x


def attention_classifier():
    inputs = keras.Input(shape=input_shape)
    normalization = layers.Normalization()
    normalization.adapt(x_train)
    row_of_squares = EncodeSquares(places, width)(CutIntoSquares(side)(normalization(inputs)))

    for _ in range(blocks):
        normed = layers.LayerNormalization()(row_of_squares)
        row_of_squares += layers.MultiHeadAttention(num_heads, width // num_heads)(normed, normed)
        row_of_squares += mlp(layers.LayerNormalization()(row_of_squares), [2 * width, width])

    representation = layers.LayerNormalization(epsilon=1e-6)(row_of_squares)
    features = mlp(layers.Flatten()(representation), [32])
    logits = layers.Dense(num_classes)(features)
    return keras.Model(inputs=inputs, outputs=logits)


model = attention_classifier()
model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=0.003, weight_decay=0.0001),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[
        keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
        keras.metrics.SparseTopKCategoricalAccuracy(3, name="top-3-accuracy"),
    ],
)
history = model.fit(x_train, y_train, batch_size=22, epochs=3, validation_split=0.1, shuffle=False, verbose=0)
score = model.evaluate(x_test, y_test, verbose=0, return_dict=True)
predicted = model.predict(x_test, verbose=0)
