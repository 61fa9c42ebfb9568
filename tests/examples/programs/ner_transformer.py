"""Named entity recognition using Transformers (https://keras.io/examples/nlp/ner_transformers/): made-up sentences."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
batch_size, maxlen, depth, num_heads, inner = 16, 14, 16, 2, 32

# "Anna Berg lives in Paris": a name begins with B- and goes on with I-, and what is no name is O. 0 is padding.
tags = ["[PAD]", "O", "B-PER", "I-PER", "B-LOC"]
first_names, surnames, places = ["Anna", "Carl", "Eva", "Hugo"], ["Berg", "Lund", "Holm"], ["Paris", "Oslo", "Rome"]
fillers = ["lives", "in", "went", "to", "and", "the", "sees", "from", "later", "again"]
rng = np.random.default_rng(0)


def made_up_sentence():
    words, word_tags = [], []
    while len(words) < rng.integers(4, maxlen - 1):
        kind = rng.integers(0, 4)
        if kind == 0:
            words += [rng.choice(first_names), rng.choice(surnames)]
            word_tags += ["B-PER", "I-PER"]
        elif kind == 1:
            words += [rng.choice(places)]
            word_tags += ["B-LOC"]
        else:
            words += [rng.choice(fillers)]
            word_tags += ["O"]
    return " ".join(words), " ".join(word_tags)


lines = ["\t".join(made_up_sentence()) for _ in range(90)]
vocabulary = sorted({word for line in lines for word in line.split("\t")[0].lower().split()})
word_lookup = layers.StringLookup(vocabulary=vocabulary, mask_token="")
tag_lookup = layers.StringLookup(vocabulary=tags[1:], mask_token="[PAD]", num_oov_indices=0)


def pair_of_line(line):
    sentence, sentence_tags = tf.unstack(tf.strings.split(line, "\t"), num=2)
    return word_lookup(tf.strings.split(tf.strings.lower(sentence))), tag_lookup(tf.strings.split(sentence_tags))


# Each batch is as wide as its longest sentence.
train_data = tf.data.Dataset.from_tensor_slices(lines[:75]).map(pair_of_line).padded_batch(batch_size)
val_data = tf.data.Dataset.from_tensor_slices(lines[75:]).map(pair_of_line).padded_batch(batch_size)


class AttentionBlock(layers.Layer):
    def __init__(self, depth, num_heads, inner):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads=num_heads, key_dim=depth)
        self.dense = keras.Sequential([layers.Dense(inner, activation="relu"), layers.Dense(depth)])
        self.norm_attended = layers.LayerNormalization(epsilon=1e-6)
        self.norm_dense = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs):
        attended = self.norm_attended(inputs + self.attention(inputs, inputs))
        return self.norm_dense(attended + self.dense(attended))


class WordsAndPlaces(layers.Layer):
    def __init__(self, maxlen, vocab_size, depth):
        super().__init__()
        self.words = layers.Embedding(input_dim=vocab_size, output_dim=depth)
        self.places = layers.Embedding(input_dim=maxlen, output_dim=depth)

    def call(self, inputs):
        return self.words(inputs) + self.places(ops.arange(ops.shape(inputs)[-1]))


class Tagger(keras.Model):
    """A tag for each word."""

    def __init__(self, num_tags, vocab_size):
        super().__init__()
        self.embed = WordsAndPlaces(maxlen, vocab_size, depth)
        self.block = AttentionBlock(depth, num_heads, inner)
        self.hidden = layers.Dense(inner, activation="relu")
        self.logits = layers.Dense(num_tags)

    def call(self, inputs):
        return self.logits(self.hidden(self.block(self.embed(inputs))))


class LossOfRealWords(keras.losses.Loss):
    """The mean over the words of a batch; its padding does not count."""

    def call(self, y_true, y_pred):
        of_each_word = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        is_word = ops.cast(ops.not_equal(y_true, 0), of_each_word.dtype)
        return ops.sum(of_each_word * is_word) / ops.sum(is_word)


model = Tagger(num_tags=len(tags), vocab_size=word_lookup.vocabulary_size())
model.compile(optimizer=keras.optimizers.Adam(0.003), loss=LossOfRealWords())
history = model.fit(train_data, validation_data=val_data, epochs=3, verbose=0)
score = model.evaluate(val_data, verbose=0, return_dict=True)

# What is predicted becomes one array, so all sentences are padded to one width.
sentences = val_data.unbatch().map(lambda words, word_tags: words)
predicted = model.predict(sentences.padded_batch(batch_size, padded_shapes=[maxlen]), verbose=0)
