"""Point cloud classification with PointNet (https://keras.io/examples/vision/pointnet/): points on made-up solids."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
num_points, num_classes, batch_size = 32, 3, 16


def make_clouds(count):
    """Points f32[count, 32, 3] on the faces of balls 0, cubes 1 and rods 2, each turned about the upright."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, count)
    balls = rng.normal(size=(count, num_points, 3))
    balls /= np.linalg.norm(balls, axis=2, keepdims=True)
    cubes = balls / np.abs(balls).max(axis=2, keepdims=True)
    points = np.choose(labels[:, np.newaxis, np.newaxis], [balls, cubes, balls * [0.2, 0.2, 1.5]])
    cosines, sines = (wave(rng.uniform(0, 2 * np.pi, (count, 1))) for wave in (np.cos, np.sin))
    x, y, z = np.moveaxis(points, 2, 0)
    turned = np.stack([cosines * x - sines * y, sines * x + cosines * y, z], axis=2)
    return (turned + rng.normal(0, 0.02, turned.shape)).astype("float32"), labels


points, labels = make_clouds(100)
train_dataset = tf.data.Dataset.from_tensor_slices((points[:74], labels[:74]))
train_dataset = train_dataset.shuffle(74, seed=1, reshuffle_each_iteration=False).batch(batch_size)
test_dataset = tf.data.Dataset.from_tensor_slices((points[74:], labels[74:])).batch(batch_size)


def convolved(x, filters):
    x = layers.Conv1D(filters, kernel_size=1, padding="valid")(x)
    x = layers.BatchNormalization(momentum=0.0)(x)
    return layers.Activation("relu")(x)


def connected(x, filters):
    x = layers.Dense(filters)(x)
    x = layers.BatchNormalization(momentum=0.0)(x)
    return layers.Activation("relu")(x)


class NearlyOrthogonal(keras.regularizers.Regularizer):
    """Keeps the matrices that a layer puts out near to rotations."""

    def __init__(self, num_features, l2reg=0.001):
        self.num_features = num_features
        self.l2reg = l2reg

    def __call__(self, x):
        x = ops.reshape(x, (-1, self.num_features, self.num_features))
        xxt = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        return ops.sum(self.l2reg * ops.square(xxt - ops.eye(self.num_features)))


def learned_turn(inputs, num_features):
    """Transforms each point of a cloud by a matrix that is made from all of them."""
    x = convolved(inputs, 8)
    x = convolved(x, 16)
    x = layers.GlobalMaxPooling1D()(x)
    x = connected(x, 8)
    x = layers.Dense(
        num_features * num_features,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(np.eye(num_features).flatten()),  # as it is, to begin with
        activity_regularizer=NearlyOrthogonal(num_features),
    )(x)
    feat_t = layers.Reshape((num_features, num_features))(x)
    return layers.Dot(axes=(2, 1))([inputs, feat_t])


inputs = keras.Input(shape=(num_points, 3))
x = learned_turn(inputs, 3)
x = convolved(x, 8)
x = learned_turn(x, 8)
x = convolved(x, 16)
x = layers.GlobalMaxPooling1D()(x)
x = connected(x, 16)
outputs = layers.Dense(num_classes, activation="softmax")(x)
model = keras.Model(inputs=inputs, outputs=outputs, name="pointnet")

model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(learning_rate=0.005),
    metrics=["sparse_categorical_accuracy"],
)
history = model.fit(train_dataset, epochs=3, validation_data=test_dataset, verbose=0)
predicted = model.predict(test_dataset, verbose=0)
