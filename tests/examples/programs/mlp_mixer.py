"""Image classification with MLP-Mixer (https://keras.io/examples/vision/mlp_image_classification/): made-up stripes."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
num_classes, image_size, side = 4, 16, 4
places = (image_size // side) ** 2
embedding_dim, num_blocks, batch_size = 16, 2, 20

# A texture is made of stripes, whose direction is its class and whose place is any.
rng = np.random.default_rng(0)
rows, columns = np.mgrid[:image_size, :image_size]
directions = np.stack([rows, columns, rows + columns, rows - columns])
labels = rng.integers(0, num_classes, 150)
phases = rng.uniform(0, 2 * np.pi, (150, 1, 1))
stripes = np.sin(directions[labels] * np.pi / 2 + phases)
images = (stripes[..., np.newaxis] + rng.normal(0, 0.3, (150, image_size, image_size, 3))).astype("float32")
x_train, y_train, x_test, y_test = images[:120], labels[:120], images[120:], labels[120:]


class MixerBlock(layers.Layer):
    """Mixes the patches of each channel, then the channels of each patch."""

    def __init__(self, places, hidden_units, **kwargs):
        super().__init__(**kwargs)
        self.mlp1 = keras.Sequential([layers.Dense(places, activation="gelu"), layers.Dense(places)])
        self.mlp2 = keras.Sequential([layers.Dense(hidden_units, activation="gelu"), layers.Dense(hidden_units)])
        self.normalize = layers.LayerNormalization(epsilon=1e-6)

    def build(self, input_shape):
        _, patches, channels = input_shape
        self.mlp1.build((None, channels, patches))
        self.mlp2.build(input_shape)
        self.normalize.build(input_shape)

    def call(self, inputs):
        x = self.normalize(inputs)
        x_channels = keras.ops.transpose(x, axes=(0, 2, 1))
        mlp1_outputs = keras.ops.transpose(self.mlp1(x_channels), axes=(0, 2, 1))
        x = mlp1_outputs + inputs
        x_patches = self.normalize(x)  # the same weights as above
        return x + self.mlp2(x_patches)


def build_classifier(blocks):
    inputs = keras.Input(shape=(image_size, image_size, 3))
    # A convolution with the stride of its kernel projects each patch by itself.
    x = layers.Conv2D(embedding_dim, kernel_size=side, strides=side)(inputs)
    x = layers.Reshape((places, embedding_dim))(x)
    x = blocks(x)
    representation = layers.GlobalAveragePooling1D()(x)
    logits = layers.Dense(num_classes)(representation)
    return keras.Model(inputs=inputs, outputs=logits)


model = build_classifier(keras.Sequential([MixerBlock(places, embedding_dim) for _ in range(num_blocks)]))
model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=0.01, weight_decay=0.0001),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
# What falls by less than a tenth is a plateau here, so that the rate is halved also in a training as short as this.
reduce_lr = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_delta=0.1)
early_stopping = keras.callbacks.EarlyStopping(
    monitor="val_loss", min_delta=0.1, patience=2, restore_best_weights=True, start_from_epoch=1
)
history = model.fit(
    x_train,
    y_train,
    batch_size=batch_size,
    epochs=6,
    validation_split=0.1,
    callbacks=[early_stopping, reduce_lr],
    shuffle=False,
    verbose=0,
)
score = model.evaluate(x_test, y_test, batch_size=batch_size, verbose=0, return_dict=True)
predicted = model.predict(x_test, verbose=0)
