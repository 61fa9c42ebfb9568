"""TabTransformer (https://keras.io/examples/structured_data/tabtransformer/): a made-up census stands in."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
batch_size, embedding_dims, num_heads, num_transformer_blocks = 24, 8, 2, 1
numeric_features = ["age", "hours_per_week"]
vocabulary = {
    "workclass": ["private", "public", "self_employed"],
    "education": ["school", "college", "bachelor", "master", "doctor"],
    "occupation": ["clerk", "craft", "sales", "tech"],
}
target_labels = ["low", "high"]

# Income follows from education and occupation together; each person stands for so many people, the weight.
rng = np.random.default_rng(0)


def make_census(rows):
    codes = {name: rng.integers(0, len(words), rows) for name, words in vocabulary.items()}
    columns = {name: np.asarray(vocabulary[name])[values] for name, values in codes.items()}
    columns |= {name: rng.normal(size=rows).astype("float32") for name in numeric_features}
    columns["weight"] = rng.gamma(2.0, 0.5, rows).astype("float32")
    is_high = (codes["education"] + codes["occupation"] + columns["hours_per_week"] > 3.5).astype("int32")
    return columns, np.asarray(target_labels)[is_high]


target_lookup = layers.StringLookup(vocabulary=target_labels, num_oov_indices=0)
lookups = {name: layers.StringLookup(vocabulary=words, num_oov_indices=0) for name, words in vocabulary.items()}


def split_example(columns, target):
    """Words become numbers, and the column of weights goes where Keras looks for it."""
    features = {name: lookup(columns[name]) for name, lookup in lookups.items()}
    features |= {name: columns[name] for name in numeric_features}
    return features, target_lookup(target), columns["weight"]


def make_dataset(census):
    return tf.data.Dataset.from_tensor_slices(census).map(split_example).batch(batch_size).cache()


train_dataset, test_dataset = make_dataset(make_census(130)), make_dataset(make_census(50))


def dense_stack(hidden_units, activation, normalization_layer):
    steps = []
    for units in hidden_units:
        steps += [normalization_layer(), layers.Dense(units, activation=activation)]
    return keras.Sequential(steps)


inputs = {name: keras.Input((), name=name, dtype="float32") for name in numeric_features}
inputs |= {name: keras.Input((), name=name, dtype="int64") for name in vocabulary}

# Each categorical column is a word of a sentence: its value embedded, and which column it is in place of a position.
embedded = [layers.Embedding(len(words), embedding_dims)(inputs[name]) for name, words in vocabulary.items()]
encoded = ops.stack(embedded, axis=1)
encoded = encoded + layers.Embedding(len(vocabulary), embedding_dims)(ops.arange(len(vocabulary)))

for _ in range(num_transformer_blocks):
    attended = layers.MultiHeadAttention(num_heads, key_dim=embedding_dims)(encoded, encoded)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([attended, encoded]))
    feedforward = dense_stack([embedding_dims], keras.activations.gelu, layers.LayerNormalization)(x)
    encoded = layers.LayerNormalization(epsilon=1e-6, center=False)(layers.Add()([feedforward, x]))

# Nothing is centered here, as the MLP begins with a normalization that would take any shift away.
numeric = ops.stack([inputs[name] for name in numeric_features], axis=-1)
features = layers.concatenate(
    [layers.Flatten()(encoded), layers.LayerNormalization(epsilon=1e-6, center=False)(numeric)]
)
features = dense_stack([16], keras.activations.selu, layers.BatchNormalization)(features)
outputs = layers.Dense(1, activation="sigmoid", name="sigmoid")(features)

model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=0.01, weight_decay=0.0001),
    loss=keras.losses.BinaryCrossentropy(),
    metrics=[keras.metrics.BinaryAccuracy(name="accuracy")],
    weighted_metrics=[keras.metrics.BinaryAccuracy(name="weighted_accuracy")],
)
history = model.fit(train_dataset, epochs=3, validation_data=test_dataset, verbose=0)
score = model.evaluate(test_dataset, verbose=0, return_dict=True)
