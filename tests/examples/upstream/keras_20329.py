"""https://github.com/keras-team/keras/issues/20329: a PyDataset of dictionaries, on several workers."""

import keras
import numpy as np

keras.utils.set_random_seed(0)


class Batches(keras.utils.PyDataset):
    def __init__(self, rows, batch_size, **kwargs):
        super().__init__(**kwargs)
        rng = np.random.default_rng(0)
        self.rows, self.batch_size = rows, batch_size
        self.radar = rng.random((rows, 8)).astype("float32")
        self.surface = rng.random((rows, 4)).astype("float32")

    def __len__(self):
        return -(-self.rows // self.batch_size)

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, min((index + 1) * self.batch_size, self.rows))
        radar, surface = self.radar[rows], self.surface[rows]
        inputs = {"radar": radar, "surface": surface}
        return inputs, {"rain": radar.sum(1, keepdims=True), "wind": surface.max(1, keepdims=True)}


inputs = {"radar": keras.Input((8,), name="radar"), "surface": keras.Input((4,), name="surface")}
hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()(list(inputs.values())))
model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(hidden) for name in ("rain", "wind")})
model.compile("adam", {"rain": "mse", "wind": "mae"}, metrics={"rain": ["mae"], "wind": ["mse"]})
history = model.fit(Batches(91, 16), epochs=2, shuffle=False, validation_data=Batches(21, 16), verbose=0)
score = model.evaluate(Batches(31, 16), verbose=0, return_dict=True)
score["updates"] = int(model.optimizer.iterations.numpy())
predicted = model.predict(Batches(31, 16), verbose=0)
