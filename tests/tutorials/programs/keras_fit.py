"""A Keras model on several devices of one machine (https://www.tensorflow.org/tutorials/distribute/keras)."""

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
strategy = tf.distribute.MirroredStrategy()
BATCH_SIZE = 32  # of all devices together
directory = tempfile.mkdtemp()

random = np.random.default_rng(0)
labels = random.integers(0, 4, 150)
images = random.uniform(0, 255, (150, 8, 8, 1)) * (1 + labels[:, None, None, None]) / 4


def scale(image, label):
    return tf.cast(image, tf.float32) / 255, label


rows = tf.data.Dataset.from_tensor_slices((images, labels)).map(scale).cache()
train_dataset = rows.take(120).shuffle(120, seed=1, reshuffle_each_iteration=False).batch(BATCH_SIZE)
eval_dataset = rows.skip(120).batch(BATCH_SIZE)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(), loss=loss, metrics=["accuracy"])


def decay(epoch):
    return 1e-3 if epoch < 2 else 1e-4


rates = []


class SeesRate(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        rates.append(self.model.optimizer.learning_rate.numpy())


checkpoint = os.path.join(directory, "{epoch}.weights.h5")
callbacks = [
    keras.callbacks.ModelCheckpoint(filepath=checkpoint, save_weights_only=True),
    keras.callbacks.LearningRateScheduler(decay),
    SeesRate(),
]
history = model.fit(train_dataset, epochs=4, callbacks=callbacks, verbose=0)

model.load_weights(checkpoint.format(epoch=4))
evaluated = model.evaluate(eval_dataset, verbose=0)

model.save(os.path.join(directory, "model.keras"))
unreplicated = keras.models.load_model(os.path.join(directory, "model.keras"))
alone = unreplicated.evaluate(eval_dataset, verbose=0)

results = {
    "weights": [v.numpy() for v in model.weights],
    "history": history.history,
    "rates": rates,
    "evaluated": evaluated,
    "alone": alone,
    "files": sorted(os.listdir(directory)),
}
