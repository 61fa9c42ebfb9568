"""A transformer-based recommendation system
(https://keras.io/examples/structured_data/movielens_recommendations_transformers/): made-up users rate made-up films.
"""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
batch_size, sequence_length, embedding_dims = 24, 4, 8
vocabulary = {
    "user_id": [f"user_{number}" for number in range(10)],
    "movie_id": [f"movie_{number}" for number in range(15)],
    "sex": ["female", "male"],
    "age_group": ["child", "grown", "old"],
}
columns = ["user_id", "sex", "age_group", "sequence_movie_ids", "sequence_ratings"]

# Lines of a file: a user, films in the order in which they were seen, and their ratings. Good films come in runs.
rng = np.random.default_rng(0)
quality = rng.uniform(1, 5, len(vocabulary["movie_id"]))


def write_sequences(path, rows):
    lines = []
    for _ in range(rows):
        user, sex, age_group = (str(rng.choice(vocabulary[name])) for name in columns[:3])
        seen = rng.integers(0, len(quality), sequence_length)
        ratings = np.clip(quality[seen] + 0.3 * rng.normal(size=sequence_length), 1, 5)
        names = ",".join(vocabulary["movie_id"][movie] for movie in seen)
        lines.append("|".join([user, sex, age_group, names, ",".join(f"{rating:.2f}" for rating in ratings)]))
    path.write_text("\n".join(lines) + "\n")


def process(features):
    """Splits the last film and its rating from those before: the film is an input, its rating is the target."""
    movies = tf.strings.split(features["sequence_movie_ids"], ",").to_tensor()
    ratings = tf.strings.to_number(tf.strings.split(features["sequence_ratings"], ","), tf.float32).to_tensor()
    inputs = {name: features[name] for name in columns[:3]}
    inputs |= {"target_movie_id": movies[:, -1], "sequence_movie_ids": movies[:, :-1]}
    return inputs | {"sequence_ratings": ratings[:, :-1]}, ratings[:, -1]


def rows_of_file(path):
    return tf.data.experimental.make_csv_dataset(
        str(path),
        batch_size,
        column_names=columns,
        column_defaults=[tf.string] * len(columns),
        field_delim="|",
        header=False,
        num_epochs=1,
        shuffle=False,
    ).map(process)


history_length = sequence_length - 1
inputs = {name: keras.Input((), name=name, dtype="string") for name in (*columns[:3], "target_movie_id")}
inputs["sequence_movie_ids"] = keras.Input((history_length,), name="sequence_movie_ids", dtype="string")
inputs["sequence_ratings"] = keras.Input((history_length,), name="sequence_ratings", dtype="float32")


lookups = {name: layers.StringLookup(vocabulary=words) for name, words in vocabulary.items()}
tables = {name: layers.Embedding(len(words) + 1, embedding_dims) for name, words in vocabulary.items()}


def encode(name, words):
    return tables[name](lookups[name](words))


# One table for all films. Those before the target count by their ratings, and each knows its place.
positions = layers.Embedding(history_length, embedding_dims)(ops.arange(history_length))
seen_movies = encode("movie_id", inputs["sequence_movie_ids"]) + positions
seen_movies = seen_movies * ops.expand_dims(inputs["sequence_ratings"], -1)
target_movie = ops.expand_dims(encode("movie_id", inputs["target_movie_id"]), 1)
sequence = layers.concatenate([seen_movies, target_movie], axis=1)

attended = layers.MultiHeadAttention(num_heads=2, key_dim=embedding_dims)(sequence, sequence)
x1 = layers.LayerNormalization()(layers.Add()([sequence, attended]))
x2 = layers.Dense(embedding_dims)(layers.LeakyReLU()(x1))
transformed = layers.LayerNormalization()(layers.Add()([x1, x2]))

user = layers.concatenate([encode(name, inputs[name]) for name in columns[:3]])
features = layers.concatenate([layers.Flatten()(transformed), user])
features = layers.LeakyReLU()(layers.BatchNormalization()(layers.Dense(16)(features)))
model = keras.Model(inputs, layers.Dense(1)(features))
model.compile(
    optimizer=keras.optimizers.Adagrad(learning_rate=0.1),
    loss=keras.losses.MeanSquaredError(),
    metrics=[keras.metrics.MeanAbsoluteError()],
)

with tempfile.TemporaryDirectory() as directory:
    train_path, test_path = pathlib.Path(directory) / "train.csv", pathlib.Path(directory) / "test.csv"
    write_sequences(train_path, 110)
    write_sequences(test_path, 40)
    history = model.fit(rows_of_file(train_path), epochs=3, verbose=0)
    score = model.evaluate(rows_of_file(test_path), verbose=0, return_dict=True)
