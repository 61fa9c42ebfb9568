"""Timeseries anomaly detection using an autoencoder
(https://keras.io/examples/timeseries/timeseries_anomaly_detection/): a made-up day, over and over.
"""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
time_steps = 24

# A day is a wave with a peak in the morning; in the second series a day has a jump that no day should have.
rng = np.random.default_rng(0)
hours = np.arange(210)
small_noise = np.sin(2 * np.pi * hours / 24) + (hours % 24 == 8) + rng.normal(0, 0.05, len(hours))
daily_jumpsup = small_noise[:120] + rng.normal(0, 0.05, 120)
daily_jumpsup[70:75] += 3

training_mean, training_std = small_noise.mean(), small_noise.std()


def sliding_windows(values):
    """Each window of a day's length, one number a step."""
    windows = np.lib.stride_tricks.sliding_window_view((values - training_mean) / training_std, time_steps)
    return windows[..., np.newaxis].astype("float32")


x_train, x_test = sliding_windows(small_noise), sliding_windows(daily_jumpsup)

model = keras.Sequential(
    [
        layers.Input(shape=(time_steps, 1)),
        layers.Conv1D(filters=16, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1D(filters=8, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=8, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=16, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=1, kernel_size=7, padding="same"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.01), loss="mse")
history = model.fit(
    x_train,
    x_train,  # what goes in shall come out
    epochs=6,
    batch_size=32,
    validation_split=0.1,
    callbacks=[keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0.035, patience=1, mode="min")],
    shuffle=False,
    verbose=0,
)

# What cannot be rebuilt as well as anything that was seen in training is an anomaly.
x_train_pred = model.predict(x_train, verbose=0)
threshold = np.max(np.mean(np.abs(x_train_pred - x_train), axis=1))
predicted = model.predict(x_test, verbose=0)
test_mae_loss = np.mean(np.abs(predicted - x_test), axis=1)
anomalies = test_mae_loss > threshold
