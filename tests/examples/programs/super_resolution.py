"""Image super-resolution with an efficient sub-pixel CNN
(https://keras.io/examples/vision/super_resolution_sub_pixel/): made-up images of soft waves.
"""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(0)
large_side, factor, batch_size = 18, 3, 8
input_size = large_side // factor


def make_images(count):
    """Sums of waves f32[count, 18, 18, 1] between 0 and 1."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:large_side, :large_side]
    images = np.zeros((count, large_side, large_side))
    for _ in range(3):
        across, down = rng.uniform(-0.5, 0.5, (2, count, 1, 1))
        images += np.sin(across * rows + down * columns + rng.uniform(0, 6, (count, 1, 1)))
    return (0.5 + images / 6)[..., np.newaxis].astype("float32")


def shrunk(image):
    return tf.image.resize(image, [input_size, input_size], method="area")


def make_dataset(images):
    dataset = tf.data.Dataset.from_tensor_slices(images)
    dataset = dataset.map(lambda image: (shrunk(image), image), num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(batch_size).prefetch(buffer_size=2)


images = make_images(63)
train_ds, valid_ds, test_ds = (make_dataset(part) for part in np.split(images, [37, 50]))


class DepthToSpace(layers.Layer):
    """Puts the channels of each pixel side by side, as a square of pixels."""

    def __init__(self, block_size, **kwargs):
        super().__init__(**kwargs)
        self.block_size = block_size

    def call(self, images):
        return tf.nn.depth_to_space(images, self.block_size)


def make_network(factor=3, channels=1):
    conv_args = {"activation": "relu", "kernel_initializer": "orthogonal", "padding": "same"}
    inputs = keras.Input(shape=(None, None, channels))  # of any size
    x = layers.Conv2D(16, 5, **conv_args)(inputs)
    x = layers.Conv2D(16, 3, **conv_args)(x)
    x = layers.Conv2D(8, 3, **conv_args)(x)
    x = layers.Conv2D(channels * (factor**2), 3, **conv_args)(x)
    return keras.Model(inputs, DepthToSpace(factor)(x))


class SignalToNoise(keras.callbacks.Callback):
    """Computes the peak signal-to-noise ratio of validation from the losses of its batches, and logs its mean."""

    def on_epoch_begin(self, epoch, logs=None):
        self.psnr = []

    def on_test_batch_end(self, batch, logs=None):
        self.psnr.append(10 * math.log10(1 / logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        logs["val_psnr"] = sum(self.psnr) / len(self.psnr)


model = make_network(factor=factor)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.003), loss=keras.losses.MeanSquaredError())
early_stopping = keras.callbacks.EarlyStopping(monitor="val_psnr", mode="max", patience=10)
history = model.fit(
    train_ds, epochs=3, callbacks=[SignalToNoise(), early_stopping], validation_data=valid_ds, verbose=0
)
score = model.evaluate(test_ds, verbose=0, return_dict=True)
predicted = model.predict(test_ds.map(lambda small, large: small), verbose=0)
