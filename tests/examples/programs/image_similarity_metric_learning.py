"""Metric learning for image similarity search (https://keras.io/examples/vision/metric_learning/): made-up objects."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
num_classes, height_width, sets_per_batch = 6, 12, 5

# The objects of a class have its pattern and its color, shifted and noisy.
rng = np.random.default_rng(0)
patterns = rng.uniform(0, 1, (num_classes, 6, 6, 3))
labels = np.repeat(np.arange(num_classes), 12)
images = rng.uniform(0, 0.5, (len(labels), height_width, height_width, 3)).astype("float32")
for image, label in zip(images, labels, strict=True):
    row, column = rng.integers(0, 6, 2)
    image[row : row + 6, column : column + 6] += patterns[label]
train, test = np.arange(len(labels)) % 12 < 9, np.arange(len(labels)) % 12 >= 9


class PairsOfEachClass(keras.utils.PyDataset):
    """Batches of sets, in each of which every class has one anchor, and one positive that is like it.

    A row is a whole set, not a pair, since the positives of other anchors are what an anchor must not be like: what is
    compared with each other stays together also where the rows of a batch are divided.
    """

    def __init__(self, num_sets, images, labels, **kwargs):
        super().__init__(**kwargs)
        self.num_sets = num_sets
        self.images = images
        self.rows_of_class = [np.flatnonzero(labels == label) for label in range(num_classes)]

    def __len__(self):
        return -(-self.num_sets // sets_per_batch)

    def __getitem__(self, index):
        random = np.random.default_rng(index)  # a batch is the same whenever it is asked for
        count = min(sets_per_batch, self.num_sets - index * sets_per_batch)
        pairs = [[random.choice(rows, 2, replace=False) for rows in self.rows_of_class] for _ in range(count)]
        anchors, positives = np.moveaxis(pairs, 2, 0)  # i64[sets, classes] each
        return self.images[anchors], self.images[positives]


class MetricModel(keras.Model):
    def embed_sets(self, sets):
        embeddings = self(ops.reshape(sets, (-1, height_width, height_width, 3)), training=True)
        return ops.reshape(embeddings, (-1, num_classes, embeddings.shape[-1]))

    def train_step(self, data):
        anchors, positives = data
        with tf.GradientTape() as tape:
            anchor_embeddings, positive_embeddings = self.embed_sets(anchors), self.embed_sets(positives)
            # The cosines of all pairs of a set; a temperature makes logits of them.
            similarities = ops.einsum("sae,spe->sap", anchor_embeddings, positive_embeddings) / 0.2
            # The class of an anchor is the place of its own positive.
            sparse_labels = ops.tile(ops.arange(num_classes)[None], (ops.shape(anchors)[0], 1))
            loss = self.compute_loss(y=sparse_labels, y_pred=similarities)

        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(sparse_labels, similarities)
        return {metric.name: metric.result() for metric in self.metrics}


inputs = layers.Input(shape=(height_width, height_width, 3))
x = layers.Conv2D(filters=8, kernel_size=3, strides=2, activation="relu")(inputs)
x = layers.Conv2D(filters=16, kernel_size=3, strides=2, activation="relu")(x)
x = layers.GlobalAveragePooling2D()(x)
embeddings = layers.UnitNormalization()(layers.Dense(units=8)(x))
model = MetricModel(inputs, embeddings)

model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
)
history = model.fit(PairsOfEachClass(23, images[train], labels[train]), epochs=3, shuffle=False, verbose=0)
predicted = model.predict(images[test], verbose=0)
