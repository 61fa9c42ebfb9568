"""Convolutional autoencoder for image denoising (https://keras.io/examples/vision/autoencoder/): made-up digits."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
image_size, batch_size = 16, 16
rng = np.random.default_rng(0)


def make_digits(count):
    """Pictures f32[count, 16, 16, 1] of a box, whose sides are bright and whose place is any."""
    digits = np.zeros((count, image_size, image_size, 1), "float32")
    for digit in digits:
        top, left = rng.integers(1, 6, 2)
        bottom, right = rng.integers(9, 15, 2)
        digit[top : bottom + 1, left : right + 1] = 1
        digit[top + 2 : bottom - 1, left + 2 : right - 1] = 0
    return digits


def noise(array, noise_factor=0.4):
    """The same with random noise, within what a pixel can have."""
    noisy_array = array + noise_factor * rng.normal(size=array.shape)
    return np.clip(noisy_array, 0.0, 1.0).astype("float32")


train_data, test_data = make_digits(75), make_digits(25)
noisy_train_data, noisy_test_data = noise(train_data), noise(test_data)

model = keras.Sequential(
    [
        keras.Input(shape=(image_size, image_size, 1)),
        # Encoder
        layers.Conv2D(8, (3, 3), activation="relu", padding="same"),
        layers.MaxPooling2D((2, 2), padding="same"),
        layers.Conv2D(8, (3, 3), activation="relu", padding="same"),
        layers.MaxPooling2D((2, 2), padding="same"),
        # Decoder
        layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same"),
        layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same"),
        layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy")

# First it learns to give back what it is given, which shows that the bottleneck is wide enough.
history = model.fit(
    x=train_data,
    y=train_data,
    epochs=2,
    batch_size=batch_size,
    shuffle=False,
    validation_data=(test_data, test_data),
    verbose=0,
)

# Then it goes on with noisy images as the input and clean ones as the target.
history = model.fit(
    x=noisy_train_data,
    y=train_data,
    epochs=3,
    batch_size=batch_size,
    shuffle=False,
    validation_data=(noisy_test_data, test_data),
    verbose=0,
)
predicted = model.predict(noisy_test_data, verbose=0)
