"""End-to-end Masked Language Modeling with BERT (https://keras.io/examples/nlp/masked_language_modeling/): counting."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
max_len, batch_size, vocab_size, depth, heads, inner = 9, 20, 16, 16, 2, 32

# Somebody counts, from anywhere and round and round, so that the words beside a hidden one tell which one it is.
rng = np.random.default_rng(0)
numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
texts = [
    " ".join(np.take(numbers, rng.integers(0, 10) + np.arange(rng.integers(6, max_len + 1)), mode="wrap"))
    for _ in range(90)
]

# Lower case, but with punctuation, for the brackets of "[mask]".
to_numbers = layers.TextVectorization(vocab_size, standardize="lower", output_sequence_length=max_len)
to_numbers.adapt(texts)
# "[mask]" gets the last number; "" and "[UNK]" have the first two.
to_numbers.set_vocabulary([*to_numbers.get_vocabulary()[2 : vocab_size - 1], "[mask]"])
hidden_number = to_numbers.vocabulary_size() - 1


def hide_words(numbered_texts):
    is_hidden = rng.random(numbered_texts.shape) < 0.25
    is_hidden[numbered_texts <= 1] = False  # padding is not to be guessed
    sample_weights = is_hidden.astype("float32")  # the loss looks at the guessed words alone
    shown = numbered_texts.copy()
    # Of 10 such words one stays what it is, as there will be no masks later on.
    shown[is_hidden & (rng.random(numbered_texts.shape) < 0.9)] = hidden_number
    return shown, numbered_texts, sample_weights


x_all = ops.convert_to_numpy(to_numbers(texts))
batches = tf.data.Dataset.from_tensor_slices(hide_words(x_all))
batches = batches.shuffle(1000, seed=0, reshuffle_each_iteration=False).batch(batch_size)


def attend(x):
    """A block of attention between the words of a sentence."""
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(heads, depth // heads)(x, x))
    wide = layers.Dense(inner, activation="relu")(x)
    return layers.LayerNormalization()(x + layers.Dense(depth)(wide))


class AddsPositions(layers.Layer):
    def build(self, input_shape):
        self.position = self.add_weight(shape=input_shape[1:], initializer="glorot_uniform")

    def call(self, x):
        return x + self.position


loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)
mean_loss = keras.metrics.Mean(name="loss")
mean_accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")


class GuessesHiddenWords(keras.Model):
    def train_step(self, inputs):
        features, labels, sample_weight = inputs
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            loss = loss_fn(labels, predictions, sample_weight=sample_weight)  # one of each word
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))

        mean_loss.update_state(loss, sample_weight=sample_weight)
        mean_accuracy.update_state(labels, predictions, sample_weight=sample_weight)
        return {"loss": mean_loss.result(), "accuracy": mean_accuracy.result()}

    @property
    def metrics(self):
        # What stands here is reset at the beginning of each epoch.
        return [mean_loss, mean_accuracy]


class GuessesOfEpochs(keras.callbacks.Callback):
    """Tells after each epoch what the model takes the hidden word of a sentence for."""

    def __init__(self, sample):
        super().__init__()
        self.sample = sample
        self.guesses = []

    def on_epoch_end(self, epoch, logs=None):
        prediction = self.model.predict(self.sample, verbose=0)
        place = np.where(self.sample == hidden_number)[1][0]
        self.guesses.append(to_numbers.get_vocabulary()[prediction[0, place].argmax()])


inputs = layers.Input((max_len,), dtype="int64")
states = AddsPositions()(layers.Embedding(vocab_size, depth)(inputs))
states = attend(states)
probabilities = layers.Dense(vocab_size, activation="softmax")(states)
model = GuessesHiddenWords(inputs, probabilities)
model.compile(optimizer=keras.optimizers.Adam(0.005))

sample = to_numbers(["two three four five six seven"]).numpy()
sample[0, 3] = hidden_number
noted = GuessesOfEpochs(sample)
history = model.fit(batches, epochs=3, callbacks=[noted], verbose=0)
predicted = model.predict(x_all[:25], verbose=0)
