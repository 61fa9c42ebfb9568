"""Character-level recurrent sequence-to-sequence model (https://keras.io/examples/nlp/lstm_seq2seq/): made-up words."""

import keras
import numpy as np

keras.utils.set_random_seed(0)
batch_size, epochs, latent_dim = 24, 3, 32

# The foreign language has our words from their ends, in capitals. A tab begins a translation, a newline ends it.
rng = np.random.default_rng(0)
letters = list("abcde")
input_texts = ["".join(rng.choice(letters, rng.integers(2, 5))) for _ in range(135)]
target_texts = ["\t" + text[::-1].upper() + "\n" for text in input_texts]


def one_hot(texts, characters, length):
    """f32[n, length, characters], filled up with spaces."""
    numbers = [[characters.index(character) for character in text.ljust(length)] for text in texts]
    return keras.utils.to_categorical(numbers, len(characters)).astype("float32")


input_characters = sorted(set(" ".join(input_texts)))
target_characters = sorted(set(" ".join(target_texts)))
num_encoder_tokens, num_decoder_tokens = len(input_characters), len(target_characters)
longest = max(len(text) for text in target_texts)
encoder_input_data = one_hot(input_texts, input_characters, longest - 2)
decoder_input_data = one_hot(target_texts, target_characters, longest)
# The target is a step ahead of what the decoder reads, and has no tab.
decoder_target_data = one_hot([text[1:] for text in target_texts], target_characters, longest)

# Of the encoder, only the states are kept: all that it has to say about a word.
encoder_inputs = keras.Input(shape=(None, num_encoder_tokens))
encoder = keras.layers.LSTM(latent_dim, return_state=True)
_, state_h, state_c = encoder(encoder_inputs)

# The decoder begins with these states, and is given what it should have said (teacher forcing).
decoder_inputs = keras.Input(shape=(None, num_decoder_tokens))
decoder_lstm = keras.layers.LSTM(latent_dim, return_sequences=True, return_state=True)
decoder_outputs, _, _ = decoder_lstm(decoder_inputs, initial_state=[state_h, state_c])
decoder_outputs = keras.layers.Dense(num_decoder_tokens, activation="softmax")(decoder_outputs)

model = keras.Model([encoder_inputs, decoder_inputs], decoder_outputs)
model.compile(optimizer=keras.optimizers.RMSprop(0.01), loss="categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    [encoder_input_data, decoder_input_data],
    decoder_target_data,
    batch_size=batch_size,
    epochs=epochs,
    validation_split=0.2,
    shuffle=False,
    verbose=0,
)
predicted = model.predict([encoder_input_data[:30], decoder_input_data[:30]], verbose=0)
