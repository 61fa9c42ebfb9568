"""OCR model for reading captchas (https://keras.io/examples/vision/captcha_ocr/): made-up letters of a few strokes."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
characters, captcha_length, batch_size = ["A", "B", "C"], 2, 16
img_width, img_height = 24, 8

# Each letter is a pattern of its own, drawn somewhere in its half of the image.
rng = np.random.default_rng(0)
glyphs = rng.integers(0, 2, (len(characters), img_height, 6))
captchas = rng.integers(0, len(characters), (100, captcha_length))
images = rng.uniform(0, 0.2, (100, img_height, img_width, 1)).astype("float32")
for image, captcha in zip(images, captchas, strict=True):
    for place, letter in enumerate(captcha):
        left = place * 12 + rng.integers(0, 6)
        image[:, left : left + 6, 0] += 0.8 * glyphs[letter]
texts = np.array(["".join(characters[letter] for letter in captcha) for captcha in captchas])

# Letters are counted from 1, since 0 stands for the blank between them.
char_to_num = layers.StringLookup(vocabulary=characters, mask_token=None)


def prepared(image, text):
    # The width comes first, as it is the time of the recurrent layers.
    image = ops.transpose(image, axes=[1, 0, 2])
    label = char_to_num(tf.strings.unicode_split(text, input_encoding="UTF-8"))
    return {"image": image, "label": tf.ensure_shape(label, [captcha_length])}


def make_dataset(rows):
    dataset = tf.data.Dataset.from_tensor_slices((images[rows], texts[rows]))
    dataset = dataset.map(prepared, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)


train_dataset, validation_dataset = make_dataset(slice(0, 75)), make_dataset(slice(75, None))


class AddsCtcLoss(layers.Layer):
    """An endpoint: adds the loss of each example in training, and gives back the predictions."""

    def call(self, y_true, y_pred):
        batch_len = ops.shape(y_true)[0]
        label_length = ops.full((batch_len,), y_true.shape[1], dtype="int32")
        input_length = ops.full((batch_len,), y_pred.shape[1], dtype="int32")
        self.add_loss(ops.ctc_loss(y_true, y_pred, label_length, input_length, mask_index=0))
        return y_pred


def reader_model():
    input_img = layers.Input(shape=(img_width, img_height, 1), name="image", dtype="float32")
    labels = layers.Input(name="label", shape=(captcha_length,), dtype="int32")

    x = layers.Conv2D(8, (3, 3), activation="relu", padding="same", name="Conv1")(input_img)
    x = layers.MaxPooling2D((2, 2), name="pool1")(x)
    x = layers.Conv2D(16, (3, 3), activation="relu", padding="same", name="Conv2")(x)
    x = layers.MaxPooling2D((2, 2), name="pool2")(x)

    # Two poolings of 2 leave a quarter of the width and of the height.
    x = layers.Reshape(target_shape=(img_width // 4, (img_height // 4) * 16), name="reshape")(x)
    x = layers.Dense(16, activation="relu", name="dense1")(x)
    x = layers.Bidirectional(layers.LSTM(16, return_sequences=True), name="lstm")(x)
    x = layers.Dense(len(char_to_num.get_vocabulary()), name="dense2")(x)

    output = AddsCtcLoss(name="ctc_loss")(labels, x)
    return keras.Model(inputs={"image": input_img, "label": labels}, outputs=output, name="ocr_model_v1")


model = reader_model()
model.compile(optimizer=keras.optimizers.Adam(0.01))
early_stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=10, restore_best_weights=True)
history = model.fit(train_dataset, validation_data=validation_dataset, epochs=3, callbacks=[early_stopping], verbose=0)

# For reading, the model up to its logits, which needs no labels.
model = keras.Model(model.get_layer("image").output, model.get_layer("dense2").output)
predicted = model.predict(validation_dataset.map(lambda batch: batch["image"]), verbose=0)
