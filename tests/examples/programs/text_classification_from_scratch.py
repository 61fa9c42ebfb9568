"""Text classification from scratch (https://keras.io/examples/nlp/text_classification_from_scratch/): made-up texts."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(0)
batch_size, max_features, embedding_dim, sequence_length = 32, 120, 16, 24

# A review has capitals, commas and the line breaks of its web page, and more words of its own side than of the other.
rng = np.random.default_rng(0)
praise = ["great", "moving", "funny", "clever", "superb", "warm"]
blame = ["dull", "awful", "boring", "flat", "clumsy", "weak"]
neutral = ["the", "film", "a", "of", "and", "plot", "scene", "actor", "it", "was", "ending", "story", "that", "in"]


def made_up_review(label):
    words = rng.choice(neutral, rng.integers(8, 26)).tolist()
    mostly, once = (praise, blame) if label else (blame, praise)
    for opinion in (*rng.choice(mostly, 3), rng.choice(once)):
        words.insert(rng.integers(0, len(words)), opinion + rng.choice(["", ",", "!"]))
    words.insert(len(words) // 2, "<br />")
    return " ".join(words).capitalize() + "."


labels = rng.integers(0, 2, 260)
reviews = np.array([made_up_review(label) for label in labels])


def raw_dataset(rows):
    return tf.data.Dataset.from_tensor_slices((reviews[rows], labels[rows])).batch(batch_size)


raw_train_ds, raw_val_ds = raw_dataset(slice(180)), raw_dataset(slice(180, 220))
raw_test_ds = raw_dataset(slice(220, None))


def words_alone(texts):
    """Lower case, without the page's tags and without punctuation."""
    texts = tf.strings.regex_replace(tf.strings.lower(texts), "<[^>]*>", " ")
    return tf.strings.regex_replace(texts, "[^a-z ]", "")


to_numbers = layers.TextVectorization(
    standardize=words_alone,
    max_tokens=max_features,
    output_mode="int",
    output_sequence_length=sequence_length,
)
to_numbers.adapt(raw_train_ds.map(lambda text, label: text))


def numbered(text, label):
    return to_numbers(tf.expand_dims(text, -1)), label


# Words become numbers in the pipeline, on the host, while the device trains on the batch before.
train_ds = raw_train_ds.map(numbered).cache().prefetch(buffer_size=10)
val_ds = raw_val_ds.map(numbered).cache().prefetch(buffer_size=10)
test_ds = raw_test_ds.map(numbered).cache().prefetch(buffer_size=10)

inputs = keras.Input(shape=(None,), dtype="int64")
x = layers.Embedding(max_features, embedding_dim)(inputs)
x = layers.Conv1D(32, 5, padding="valid", activation="relu", strides=2)(x)
x = layers.Conv1D(32, 3, padding="valid", activation="relu", strides=2)(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(32, activation="relu")(x)
predictions = layers.Dense(1, activation="sigmoid", name="predictions")(x)
model = keras.Model(inputs, predictions)

model.compile(loss="binary_crossentropy", optimizer=keras.optimizers.Adam(0.01), metrics=["accuracy"])
history = model.fit(train_ds, validation_data=val_ds, epochs=3, verbose=0)
score = model.evaluate(test_ds, verbose=0, return_dict=True)
predicted = model.predict(test_ds, verbose=0)
