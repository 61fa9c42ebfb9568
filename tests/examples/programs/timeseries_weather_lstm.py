"""Timeseries forecasting for weather prediction
(https://keras.io/examples/timeseries/timeseries_weather_forecasting/): made-up pressure, temperature and humidity.
"""

import pathlib
import tempfile

import keras
import numpy as np

keras.utils.set_random_seed(0)
step, past, future, batch_size, epochs = 2, 24, 6, 32, 3

# A row an hour: days, and the slower waves of the weather, which pressure knows before the temperature does.
rng = np.random.default_rng(0)
hours = np.arange(300)
weather = np.sin(2 * np.pi * (hours + 10) / 70)
pressure = 990 + 8 * weather
temperature = 10 + 6 * np.sin(2 * np.pi * hours / 24) + 5 * np.sin(2 * np.pi * hours / 70)
humidity = 60 - 2 * temperature + 5 * weather
features = np.stack([pressure, temperature, humidity], axis=1) + rng.normal(0, 0.3, (len(hours), 3))

# The mean and the spread are those of the training, as the validation is the future.
train_split = 200
features = (features - features[:train_split].mean(axis=0)) / features[:train_split].std(axis=0)
train_data, val_data = features[:train_split], features[train_split:]


def windows(data):
    """Every `step`th hour of the past, and the temperature of an hour in the future."""
    x = data[: -(past + future)].astype("float32")
    y = data[past + future :, [1]].astype("float32")
    return keras.utils.timeseries_dataset_from_array(
        x, y, sequence_length=past // step, sampling_rate=step, batch_size=batch_size
    )


dataset_train, dataset_val = windows(train_data), windows(val_data)

inputs = keras.Input(shape=(past // step, features.shape[1]))
outputs = keras.layers.Dense(1)(keras.layers.LSTM(16)(inputs))
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.01), loss="mse")

with tempfile.TemporaryDirectory() as directory:
    stops_early = keras.callbacks.EarlyStopping(monitor="val_loss", patience=5)
    keeps_best = keras.callbacks.ModelCheckpoint(
        pathlib.Path(directory) / "best.weights.h5", monitor="val_loss", save_best_only=True, save_weights_only=True
    )
    history = model.fit(
        dataset_train, epochs=epochs, validation_data=dataset_val, callbacks=[stops_early, keeps_best], verbose=0
    )
predicted = model.predict(dataset_val, verbose=0)
