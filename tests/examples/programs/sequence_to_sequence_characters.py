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

input_characters = sorted(set("".join(input_texts)) | {" "})
target_characters = sorted(set("".join(target_texts)) | {" "})
num_encoder_tokens, num_decoder_tokens = len(input_characters), len(target_characters)
max_encoder_seq_length = max(len(text) for text in input_texts)
max_decoder_seq_length = max(len(text) for text in target_texts)
input_token_index = {character: number for number, character in enumerate(input_characters)}
target_token_index = {character: number for number, character in enumerate(target_characters)}

encoder_input_data = np.zeros((len(input_texts), max_encoder_seq_length, num_encoder_tokens), "float32")
decoder_input_data = np.zeros((len(input_texts), max_decoder_seq_length, num_decoder_tokens), "float32")
decoder_target_data = np.zeros((len(input_texts), max_decoder_seq_length, num_decoder_tokens), "float32")
for row, (input_text, target_text) in enumerate(zip(input_texts, target_texts, strict=True)):
    for time, character in enumerate(input_text):
        encoder_input_data[row, time, input_token_index[character]] = 1.0
    encoder_input_data[row, len(input_text) :, input_token_index[" "]] = 1.0
    for time, character in enumerate(target_text):
        decoder_input_data[row, time, target_token_index[character]] = 1.0
        if time > 0:  # the target is a step ahead of the decoder's input, and has no tab
            decoder_target_data[row, time - 1, target_token_index[character]] = 1.0
    decoder_input_data[row, len(target_text) :, target_token_index[" "]] = 1.0
    decoder_target_data[row, len(target_text) - 1 :, target_token_index[" "]] = 1.0

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
