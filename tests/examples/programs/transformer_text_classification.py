"""Text classification with Transformer (https://keras.io/examples/nlp/text_classification_with_transformer/):
made-up word numbers stand in for the reviews.
"""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
vocab_size, maxlen, num_classes = 60, 16, 2
depth, num_heads, inner = 16, 2, 32

# "Good" praises, but "not good" blames: the words beside a word say what it means.
rng = np.random.default_rng(0)
NOT, GOOD = 1, 2
labels = rng.integers(0, num_classes, 230)
reviews = []
for label in labels:
    words = rng.integers(3, vocab_size, rng.integers(6, 14))
    place = rng.integers(1, len(words))
    words[place] = GOOD
    words[place - 1] = words[place - 1] if label else NOT
    reviews.append(words)
reviews = keras.utils.pad_sequences(reviews, maxlen=maxlen)
x_train, y_train, x_val, y_val = reviews[:200], labels[:200], reviews[200:], labels[200:]


class AttentionBlock(layers.Layer):
    """Attention and two dense layers, each around a shortcut."""

    def __init__(self, depth, num_heads, inner, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(num_heads=num_heads, key_dim=depth)
        self.dense = keras.Sequential([layers.Dense(inner, activation="relu"), layers.Dense(depth)])
        self.norm_attended = layers.LayerNormalization(epsilon=1e-6)
        self.norm_dense = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs):
        attended = self.norm_attended(inputs + self.attention(inputs, inputs))
        return self.norm_dense(attended + self.dense(attended))


class WordsAndPlaces(layers.Layer):
    """What a word means, and where it stands."""

    def __init__(self, maxlen, vocab_size, depth, **kwargs):
        super().__init__(**kwargs)
        self.words = layers.Embedding(input_dim=vocab_size, output_dim=depth)
        self.places = layers.Embedding(input_dim=maxlen, output_dim=depth)

    def call(self, x):
        return self.words(x) + self.places(ops.arange(ops.shape(x)[-1]))


inputs = layers.Input(shape=(maxlen,))
x = WordsAndPlaces(maxlen, vocab_size, depth)(inputs)
x = AttentionBlock(depth, num_heads, inner)(x)
x = layers.GlobalAveragePooling1D()(x)
x = layers.Dense(20, activation="relu")(x)
outputs = layers.Dense(num_classes, activation="softmax")(x)
model = keras.Model(inputs=inputs, outputs=outputs)


def warm_up(epoch):
    # The first steps of a Transformer are small ones, while its attention knows nothing.
    return 0.005 if epoch == 0 else 0.01


model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    x_train,
    y_train,
    batch_size=36,
    epochs=3,
    validation_data=(x_val, y_val),
    callbacks=[keras.callbacks.LearningRateScheduler(warm_up)],
    shuffle=False,
    verbose=0,
)
score = model.evaluate(x_val, y_val, verbose=0, return_dict=True)
predicted = model.predict(x_val, verbose=0)
