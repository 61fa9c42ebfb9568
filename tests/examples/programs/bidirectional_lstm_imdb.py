"""Bidirectional LSTM on IMDB (https://keras.io/examples/nlp/bidirectional_lstm_imdb/): made-up word numbers."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
max_features = 200  # words that are known
maxlen = 20  # words of a review that are read

# A review is a list of word numbers, as long as its writer liked; a few of its words praise or blame.
rng = np.random.default_rng(0)
praise, blame = np.arange(10, 20), np.arange(20, 30)


def made_up_review(label):
    words = rng.integers(30, max_features, rng.integers(8, 28))
    places = rng.choice(len(words), 5, replace=False)
    words[places[:4]] = rng.choice(praise if label else blame, 4)
    words[places[4]] = rng.choice(blame if label else praise)  # nobody is of one opinion all along
    return [1, *words.tolist()]  # 1 is the start of each review


labels = rng.integers(0, 2, 200)
reviews = [made_up_review(label) for label in labels]
x_train, y_train, x_val, y_val = reviews[:170], labels[:170], reviews[170:], labels[170:]

# Zeros are put before what is short; what is long loses its beginning, as the verdict is often in the end.
x_train = keras.utils.pad_sequences(x_train, maxlen=maxlen)
x_val = keras.utils.pad_sequences(x_val, maxlen=maxlen)

# Of any length, as far as the model goes.
inputs = keras.Input(shape=(None,), dtype="int32")
x = layers.Embedding(max_features, 16)(inputs)
x = layers.Bidirectional(layers.LSTM(8))(x)  # reads each review from both ends
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)

model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=32, epochs=3, validation_data=(x_val, y_val), shuffle=False, verbose=0)
score = model.evaluate(x_val, y_val, batch_size=32, verbose=0, return_dict=True)
