"""Simple MNIST convnet (https://keras.io/examples/vision/mnist_convnet/): made-up images stand in for the digits."""

import keras
import numpy as np

keras.utils.set_random_seed(0)
num_classes, input_shape = 10, (12, 12, 1)

# A digit is a bright bar whose place says which one it is.
rng = np.random.default_rng(0)
labels = rng.integers(0, num_classes, 90)
images = rng.random((90, *input_shape)).astype("float32") * 0.3
for image, label in zip(images, labels, strict=True):
    image[:, label : label + 2] += 0.7
y = keras.utils.to_categorical(labels, num_classes)
x_train, y_train, x_test, y_test = images[:70], y[:70], images[70:], y[70:]

model = keras.Sequential(
    [
        keras.Input(shape=input_shape),
        keras.layers.Conv2D(8, kernel_size=(3, 3), activation="relu"),
        keras.layers.MaxPooling2D(pool_size=(2, 2)),
        keras.layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(num_classes, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=16, epochs=3, validation_split=0.1, shuffle=False, verbose=0)
score = model.evaluate(x_test, y_test, verbose=0, return_dict=True)
predicted = model.predict(x_test, verbose=0)
