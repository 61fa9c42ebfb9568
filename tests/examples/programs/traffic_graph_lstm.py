"""Traffic forecasting using graph neural networks and LSTM
(https://keras.io/examples/timeseries/timeseries_traffic_forecasting/): jams that travel along made-up roads.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
num_nodes, input_sequence_length, forecast_horizon, batch_size = 6, 8, 3, 24

# The roads are one behind the other, and a jam on one of them comes to the next one two steps later.
rng = np.random.default_rng(0)
time = np.arange(200)[:, np.newaxis]
speeds = 60 + 15 * np.sin(2 * np.pi * (time - 2 * np.arange(num_nodes)) / 12) + rng.normal(0, 1.5, (200, num_nodes))
route_distances = 5.0 * np.abs(np.arange(num_nodes)[:, np.newaxis] - np.arange(num_nodes))

train_array, val_array, test_array = speeds[:125], speeds[125:160], speeds[160:]
mean, std = train_array.mean(axis=0), train_array.std(axis=0)


def windows_of(data_array, shuffle=True):
    """Inputs f32[b, time, nodes, 1], and the speeds f32[b, horizon, nodes] that follow them."""
    data_array = ((data_array - mean) / std).astype("float32")
    inputs = keras.utils.timeseries_dataset_from_array(
        data_array[:-forecast_horizon, :, np.newaxis],
        None,
        sequence_length=input_sequence_length,
        batch_size=batch_size,
    )
    targets = keras.utils.timeseries_dataset_from_array(
        data_array[input_sequence_length:], None, sequence_length=forecast_horizon, batch_size=batch_size
    )
    dataset = tf.data.Dataset.zip((inputs, targets))
    if shuffle:
        dataset = dataset.shuffle(100, seed=0, reshuffle_each_iteration=False)
    return dataset.prefetch(16).cache()


train_dataset, val_dataset = windows_of(train_array), windows_of(val_array, shuffle=False)
test_dataset = windows_of(test_array, shuffle=False)


def neighbors_of(route_distances, sigma2, epsilon):
    """1 where two roads are so near to each other that traffic on one is felt on the other, else 0."""
    nearness = np.exp(-np.square(route_distances / 10) / sigma2)
    np.fill_diagonal(nearness, 0)  # a road is no neighbor of itself
    return (nearness > epsilon).astype("float32")


class MixNeighbors(layers.Layer):
    """Puts beside each node's own numbers the mean of those of its neighbors."""

    def __init__(self, in_feat, out_feat, adjacency_matrix, **kwargs):
        super().__init__(**kwargs)
        self.neighbors = adjacency_matrix / adjacency_matrix.sum(axis=1, keepdims=True)
        self.weight = self.add_weight(shape=(in_feat, out_feat), initializer="glorot_uniform")

    def call(self, features):
        own = ops.matmul(features, self.weight)  # f32[nodes, b, time, out_feat]
        others = ops.einsum("mn,nbtf->mbtf", self.neighbors, own)
        return ops.relu(ops.concatenate([own, others], axis=-1))


class GraphThenTime(layers.Layer):
    """A convolution over the graph, then an LSTM over the time of each node."""

    def __init__(self, in_feat, out_feat, lstm_units, horizon, adjacency_matrix, **kwargs):
        super().__init__(**kwargs)
        self.horizon = horizon
        self.graph_conv = MixNeighbors(in_feat, out_feat, adjacency_matrix)
        self.lstm = layers.LSTM(lstm_units, activation="relu")
        self.dense = layers.Dense(horizon)

    def call(self, inputs):
        mixed = self.graph_conv(ops.transpose(inputs, (2, 0, 1, 3)))  # the nodes come first
        nodes, batch, steps, features = ops.shape(mixed)
        # To the LSTM, each node of each example is a sequence of its own.
        ahead = self.dense(self.lstm(ops.reshape(mixed, (nodes * batch, steps, features))))
        return ops.transpose(ops.reshape(ahead, (nodes, batch, self.horizon)), (1, 2, 0))


adjacency_matrix = neighbors_of(route_distances, sigma2=0.1, epsilon=0.05)
inputs = layers.Input((input_sequence_length, num_nodes, 1))
outputs = GraphThenTime(1, 6, 16, forecast_horizon, adjacency_matrix)(inputs)
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.RMSprop(learning_rate=0.005), loss=keras.losses.MeanSquaredError())
history = model.fit(
    train_dataset,
    validation_data=val_dataset,
    epochs=3,
    callbacks=[keras.callbacks.EarlyStopping(patience=10)],
    verbose=0,
)
score = model.evaluate(test_dataset, verbose=0, return_dict=True)
predicted = model.predict(test_dataset, verbose=0)
