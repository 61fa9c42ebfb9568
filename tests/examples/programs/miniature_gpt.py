"""Text generation with a miniature GPT
(https://keras.io/examples/generative/text_generation_with_miniature_gpt/): made-up sentences stand in for film reviews.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
vocab_size, maxlen, depth, num_heads, feed_forward_dim, batch_size = 30, 10, 16, 2, 16, 20

# Sentences after one pattern, so that the next word can be guessed from those before it.
rng = np.random.default_rng(0)
films, verbs = ["film", "story", "cast", "music"], ["was", "seemed"]
praise, blame = ["good", "funny", "bright"], ["bad", "slow", "dull"]


def write_review():
    first, second = rng.choice(films, 2)
    liked = rng.random() < 0.5
    words = praise if liked else blame
    end = "watch it again" if liked else "do not watch it"
    return f"the {first} {rng.choice(verbs)} {rng.choice(words)}, and the {second} {rng.choice(words)}! {end}."


reviews = [write_review() for _ in range(90)]


def lower_and_split(text):
    """Lower-case letters, and a blank before each sign so that it is a word of its own."""
    return tf.strings.regex_replace(tf.strings.lower(text), r"([,.!])", r" \1")


to_numbers = layers.TextVectorization(
    standardize=lower_and_split, max_tokens=vocab_size - 1, output_mode="int", output_sequence_length=maxlen + 1
)
text_dataset = tf.data.Dataset.from_tensor_slices(reviews)
text_dataset = text_dataset.shuffle(100, seed=1, reshuffle_each_iteration=False).batch(batch_size)
to_numbers.adapt(text_dataset)
vocab = to_numbers.get_vocabulary()


def next_words(text):
    """What is to be guessed at each place is the word that comes next."""
    tokens = to_numbers(text)
    return tokens[:, :-1], tokens[:, 1:]


text_dataset = text_dataset.map(next_words, num_parallel_calls=tf.data.AUTOTUNE).prefetch(1)


def earlier_words(rows, length):
    """True where the place of a row may look at the place of a column: at itself, and at those before it."""
    may_look = ops.arange(length)[:, None] >= ops.arange(length)
    return ops.tile(may_look[None], [rows, 1, 1])


class AttentionBlock(layers.Layer):
    def __init__(self, depth, num_heads, inner):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads, depth)
        self.feed_forward = keras.Sequential([layers.Dense(inner, activation="relu"), layers.Dense(depth)])
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs):
        rows, length = ops.shape(inputs)[0], ops.shape(inputs)[1]
        attended = self.attention(inputs, inputs, attention_mask=earlier_words(rows, length))
        x = self.norm1(inputs + attended)
        return self.norm2(x + self.feed_forward(x))


class WordsAndPlaces(layers.Layer):
    def __init__(self, maxlen, vocab_size, depth):
        super().__init__()
        self.tokens = layers.Embedding(vocab_size, depth)
        self.positions = layers.Embedding(maxlen, depth)

    def call(self, x):
        return self.tokens(x) + self.positions(ops.arange(ops.shape(x)[-1]))


class WritesOn(keras.callbacks.Callback):
    """Writes on from a prompt at the end of each epoch, always with the likeliest word."""

    def __init__(self, prompt, num_words):
        super().__init__()
        self.prompt, self.num_words, self.texts = prompt.split(), num_words, []

    def on_epoch_end(self, epoch, logs=None):
        words = list(self.prompt)
        for _ in range(self.num_words):
            tokens = [vocab.index(word) for word in words]
            padded = np.asarray([tokens + [0] * (maxlen - len(tokens))])
            logits, _ = self.model.predict(padded, verbose=0)
            words.append(vocab[min(logits[0][len(tokens) - 1].argmax(), len(vocab) - 1)])
        self.texts.append(" ".join(words))


inputs = keras.Input(shape=(maxlen,), dtype="int32")
x = WordsAndPlaces(maxlen, vocab_size, depth)(inputs)
x = AttentionBlock(depth, num_heads, feed_forward_dim)(x)
outputs = layers.Dense(vocab_size)(x)
model = keras.Model(inputs=inputs, outputs=[outputs, x])
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss=[loss_fn, None])  # the second output, the hidden states, has no target
generator = WritesOn("the film was", num_words=2)
history = model.fit(text_dataset, epochs=3, callbacks=[generator], verbose=0)
predicted = model.predict(text_dataset, verbose=0)
