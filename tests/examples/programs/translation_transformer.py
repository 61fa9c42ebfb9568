"""English-to-Spanish translation with a sequence-to-sequence Transformer
(https://keras.io/examples/nlp/neural_machine_translation_with_transformer/): sentences made up from few words.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
vocab_size, sequence_length, batch_size = 40, 8, 16
depth, latent_dim, num_heads = 16, 32, 2

# Spanish puts the color behind the thing.
rng = np.random.default_rng(0)
who = {"I": "yo", "she": "ella", "he": "él"}
verbs = {"see": "ver", "have": "tener", "want": "querer"}
colors = {"red": "rojo", "white": "blanco", "green": "verde"}
things = {"car": "coche", "book": "libro", "cat": "gato", "hat": "sombrero"}
text_pairs = []
for _ in range(88):
    subject, verb, color, thing = (rng.choice(list(words)) for words in (who, verbs, colors, things))
    english, spanish = f"{subject} {verb} a", f"{who[subject]} {verbs[verb]} un {things[thing]}"
    if rng.random() < 0.6:  # so that sentences have different lengths
        english, spanish = f"{english} {color}", f"{spanish} {colors[color]}"
    text_pairs.append((f"{english} {thing}.", f"[start] {spanish} [end]"))
train_pairs, val_pairs = text_pairs[:75], text_pairs[75:]

eng_vectorization = layers.TextVectorization(vocab_size, output_sequence_length=sequence_length)
# One more than the decoder sees, as its target is a step ahead; the brackets of [start] are kept.
spa_vectorization = layers.TextVectorization(vocab_size, "lower", output_sequence_length=sequence_length + 1)
eng_vectorization.adapt([english for english, _ in train_pairs])
spa_vectorization.adapt([spanish for _, spanish in train_pairs])


def teacher_forced(eng, spa):
    eng, spa = eng_vectorization(eng), spa_vectorization(spa)
    return {"encoder_inputs": eng, "decoder_inputs": spa[:, :-1]}, spa[:, 1:]


def make_dataset(pairs):
    eng_texts, spa_texts = zip(*pairs, strict=True)
    dataset = tf.data.Dataset.from_tensor_slices((list(eng_texts), list(spa_texts)))
    return dataset.batch(batch_size).map(teacher_forced).cache().prefetch(16)


class PlacedWords(layers.Layer):
    """What a word means, and where it stands; and the mask of which words are no padding."""

    def __init__(self, name):
        super().__init__(name=name)
        self.words = layers.Embedding(vocab_size, depth)
        self.places = layers.Embedding(sequence_length, depth)

    def call(self, inputs):
        return self.words(inputs) + self.places(ops.arange(ops.shape(inputs)[-1]))

    def compute_mask(self, inputs, mask=None):
        return ops.not_equal(inputs, 0)


class AttentionLayers(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention_1 = layers.MultiHeadAttention(num_heads=num_heads, key_dim=depth)
        self.dense_proj = keras.Sequential([layers.Dense(latent_dim, activation="relu"), layers.Dense(depth)])
        self.layernorm_1, self.layernorm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.supports_masking = True  # the mask of the inputs is that of the outputs


class Reader(AttentionLayers):
    def call(self, inputs, mask=None):
        attention_mask = None if mask is None else mask[:, None, :]
        x = self.layernorm_1(inputs + self.attention_1(inputs, inputs, attention_mask=attention_mask))
        return self.layernorm_2(x + self.dense_proj(x))


class Writer(AttentionLayers):
    def __init__(self):
        super().__init__()
        self.attention_2 = layers.MultiHeadAttention(num_heads=num_heads, key_dim=depth)
        self.layernorm_3 = layers.LayerNormalization()

    def call(self, inputs, mask=None):
        inputs, encoder_outputs = inputs
        mask, encoder_mask = (None, None) if mask is None else mask
        # A word sees the words before it alone, in each sentence of the batch.
        batch, length = ops.shape(inputs)[:2]
        is_before = ops.arange(length)[:, None] >= ops.arange(length)
        causal_mask = ops.broadcast_to(is_before, (batch, length, length))
        attended = self.attention_1(inputs, inputs, attention_mask=causal_mask, query_mask=mask)
        x = self.layernorm_1(inputs + attended)
        attended = self.attention_2(x, encoder_outputs, query_mask=mask, key_mask=encoder_mask)
        x = self.layernorm_2(x + attended)
        return self.layernorm_3(x + self.dense_proj(x))


encoder_inputs = keras.Input(shape=(None,), dtype="int64", name="encoder_inputs")
encoder_outputs = Reader()(PlacedWords("english")(encoder_inputs))
decoder_inputs = keras.Input(shape=(None,), dtype="int64", name="decoder_inputs")
x = Writer()([PlacedWords("spanish")(decoder_inputs), encoder_outputs])
decoder_outputs = layers.Dense(vocab_size, activation="softmax")(x)
model = keras.Model({"encoder_inputs": encoder_inputs, "decoder_inputs": decoder_inputs}, decoder_outputs)

train_ds, val_ds = make_dataset(train_pairs), make_dataset(val_pairs)
model.compile("rmsprop", loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=0), metrics=["accuracy"])
history = model.fit(train_ds, epochs=3, validation_data=val_ds, verbose=0)
score = model.evaluate(val_ds, verbose=0, return_dict=True)
predicted = model.predict(val_ds, verbose=0)
