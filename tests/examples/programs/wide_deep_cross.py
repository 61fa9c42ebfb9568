"""Wide, Deep & Cross (https://keras.io/examples/structured_data/wide_deep_cross_networks/): forests are made up."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
batch_size, num_epochs, num_classes = 32, 3, 4
vocabulary = {
    "wilderness_area": ["comanche", "neota", "poudre", "rawah"],
    "soil_type": [f"soil_{number}" for number in range(8)],
}
numeric_features = ["elevation", "slope"]

# The cover of a piece of land follows from its height, and from the pair of area and soil.
rng = np.random.default_rng(0)


def make_data(rows):
    columns = {name: rng.normal(size=rows).astype("float32") for name in numeric_features}
    codes = {name: rng.integers(0, len(words), rows) for name, words in vocabulary.items()}
    columns |= {name: tf.gather(vocabulary[name], values) for name, values in codes.items()}
    cover_type = (codes["wilderness_area"] + codes["soil_type"] // 4 + (columns["elevation"] > 0)) % num_classes
    return columns, cover_type


x_train, y_train = make_data(180)
x_test, y_test = make_data(50)


def make_inputs():
    numeric = {name: keras.Input((), name=name, dtype="float32") for name in numeric_features}
    return numeric | {name: keras.Input((), name=name, dtype="string") for name in vocabulary}


def encoded_columns(inputs, use_embedding):
    """All columns side by side: words as rows of a small table, or as vectors of zeros and a one."""
    encoded = [ops.expand_dims(inputs[name], -1) for name in numeric_features]
    for name, words in vocabulary.items():
        if use_embedding:
            index = layers.StringLookup(vocabulary=words, num_oov_indices=0)(inputs[name])
            encoded.append(layers.Embedding(len(words), output_dim=int(len(words) ** 0.5) + 1)(index))
        else:
            encoded.append(
                layers.StringLookup(vocabulary=words, num_oov_indices=0, output_mode="one_hot")(inputs[name])
            )
    return layers.concatenate(encoded)


inputs = make_inputs()
wide = layers.BatchNormalization()(encoded_columns(inputs, use_embedding=False))

# Each cross layer multiplies what it is given with the features, so that products of several of them come about.
features = cross = encoded_columns(inputs, use_embedding=True)
for _ in range(2):
    cross = features * layers.Dense(features.shape[-1])(cross) + cross

deep = layers.Dense(24, use_bias=False)(features)  # what follows has a shift of its own
deep = layers.BatchNormalization()(deep)
deep = layers.ReLU()(deep)

outputs = layers.Dense(num_classes, activation="softmax")(layers.concatenate([wide, cross, deep]))
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)


def schedule(epoch, learning_rate):
    return 0.02 if epoch == 0 else learning_rate * 0.7


history = model.fit(
    x_train,
    y_train,
    batch_size=batch_size,
    epochs=num_epochs,
    shuffle=False,
    callbacks=[keras.callbacks.LearningRateScheduler(schedule)],
    verbose=0,
)
score = model.evaluate(x_test, y_test, batch_size=batch_size, verbose=0, return_dict=True)
predicted = model.predict(x_test, verbose=0)
