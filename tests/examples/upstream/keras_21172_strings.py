"""https://github.com/keras-team/keras/issues/21172: words as inputs, looked up in the model (also tensorflow#80951)."""

import keras
import tensorflow as tf

keras.utils.set_random_seed(0)
numbers = tf.constant([[1.0, 2.0], [3.0, 4.0], [0.5, 1.5]])
words = tf.constant([["foo", "bar"], ["baz", "qux"], ["bar", "new"]])
labels = tf.constant([[1.0], [0.0], [1.0]])
dataset = tf.data.Dataset.from_tensor_slices(((numbers, words), labels)).batch(2)
number_input = keras.Input((2,), name="numbers")
word_input = keras.Input((2,), dtype="string", name="words")
ids = keras.layers.StringLookup(vocabulary=["foo", "bar", "baz", "qux"])(word_input)
joined = keras.layers.Concatenate()([number_input, keras.layers.Lambda(lambda t: tf.cast(t, "float32"))(ids)])
model = keras.Model([number_input, word_input], keras.layers.Dense(1, activation="sigmoid")(joined))
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(dataset, epochs=3, verbose=0)
predicted = model.predict(dataset, verbose=0)
score = {"updates": int(model.optimizer.iterations.numpy())}
