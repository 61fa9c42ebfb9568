"""Image segmentation with a U-Net-like architecture (https://keras.io/examples/vision/oxford_pets_image_segmentation/):
made-up photographs of round pets, whose masks have a class for each pixel.
"""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
num_classes, img_size, batch_size = 3, (16, 16), 10


def make_pets(count):
    """Photographs f32[count, 16, 16, 3], and masks u8[count, 16, 16, 1] of background 0, fur 1 and outline 2."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[: img_size[0], : img_size[1]]
    centers = rng.uniform(5, 11, (count, 2, 1, 1))
    radii = rng.uniform(3, 6, (count, 1, 1))
    distances = np.hypot(rows - centers[:, 0], columns - centers[:, 1])
    masks = np.where(distances < radii - 1, 1, np.where(distances < radii + 1, 2, 0))
    colors = np.array([[0.1, 0.5, 0.1], [0.9, 0.6, 0.3], [0.3, 0.2, 0.2]])  # of grass, fur and outline
    images = colors[masks] + rng.normal(0, 0.1, (count, *img_size, 3))
    return images.astype("float32"), masks[..., np.newaxis].astype("uint8")


class PetImages(keras.utils.PyDataset):
    """Serves batches of photographs and masks, as if each were read from its file."""

    def __init__(self, images, masks, **kwargs):
        super().__init__(**kwargs)
        self.images, self.masks = images, masks

    def __len__(self):
        return -(-len(self.images) // batch_size)

    def __getitem__(self, index):
        here = slice(index * batch_size, (index + 1) * batch_size)
        return self.images[here], self.masks[here]


def make_network():
    inputs = keras.Input(shape=(*img_size, 3))

    # The entry block halves the image.
    x = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("relu")(x)
    previous_block_activation = x  # set aside the residual

    # The first half of the network is downsampling.
    for filters in (8, 16):
        x = layers.Activation("relu")(x)
        x = layers.SeparableConv2D(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = layers.Conv2D(filters, 1, strides=2, padding="same")(previous_block_activation)
        x = layers.add([x, residual])
        previous_block_activation = x

    # The second half is upsampling, once more than was downsampled, for the entry block.
    for filters in (16, 8, 8):
        x = layers.Activation("relu")(x)
        x = layers.Conv2DTranspose(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.UpSampling2D(2)(x)
        residual = layers.UpSampling2D(2)(previous_block_activation)
        residual = layers.Conv2D(filters, 1, padding="same")(residual)
        x = layers.add([x, residual])
        previous_block_activation = x

    outputs = layers.Conv2D(num_classes, 3, activation="softmax", padding="same")(x)
    return keras.Model(inputs, outputs)


images, masks = make_pets(72)
train_dataset = PetImages(images[:47], masks[:47])
valid_dataset = PetImages(images[47:], masks[47:])

model = make_network()
model.compile(optimizer=keras.optimizers.RMSprop(3e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(train_dataset, epochs=3, shuffle=False, validation_data=valid_dataset, verbose=0)
predicted = model.predict(valid_dataset, verbose=0)
