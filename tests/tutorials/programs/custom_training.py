"""A training loop of one's own (https://www.tensorflow.org/tutorials/distribute/custom_training)."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
strategy = tf.distribute.MirroredStrategy()
GLOBAL_BATCH_SIZE, EPOCHS = 16, 3

random = np.random.default_rng(0)
labels = random.integers(0, 4, 96)
images = (random.normal(size=(96, 8, 8, 1)) + labels[:, None, None, None]).astype("float32")
rows = tf.data.Dataset.from_tensor_slices((images, labels))
train_dataset = rows.take(64).shuffle(64, seed=1).batch(GLOBAL_BATCH_SIZE)
test_dataset = rows.skip(64).batch(GLOBAL_BATCH_SIZE)
train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)
test_dist_dataset = strategy.experimental_distribute_dataset(test_dataset)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(4),
        ]
    )
    optimizer = keras.optimizers.Adam(learning_rate=0.01)
    optimizer.build(model.trainable_variables)  # Keras 3 cannot in a replica
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    test_loss = keras.metrics.Mean(name="test_loss")
    train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    test_accuracy = keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")


def compute_loss(labels, predictions):
    per_example_loss = loss_object(labels, predictions)
    return tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = compute_loss(labels, predictions)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    train_accuracy.update_state(labels, predictions)
    return loss


def test_step(inputs):
    images, labels = inputs
    predictions = model(images, training=False)
    test_loss.update_state(loss_object(labels, predictions))
    test_accuracy.update_state(labels, predictions)


@tf.function
def distributed_train_step(inputs):
    per_replica_losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


@tf.function
def distributed_test_step(inputs):
    strategy.run(test_step, args=(inputs,))


logs = []
for _ in range(EPOCHS):
    total_loss, num_batches = 0.0, 0
    for batch in train_dist_dataset:
        total_loss += float(distributed_train_step(batch))
        num_batches += 1
    for batch in test_dist_dataset:
        distributed_test_step(batch)
    values = [float(metric.result()) for metric in (train_accuracy, test_loss, test_accuracy)]
    logs.append([total_loss / num_batches, *values])
    for metric in (train_accuracy, test_loss, test_accuracy):
        metric.reset_state()

results = {"weights": [v.numpy() for v in model.weights], "logs": logs}
