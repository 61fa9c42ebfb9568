"""A Keras model on several hosts (https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras)."""

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
GLOBAL_BATCH_SIZE = 24
directory = tempfile.mkdtemp()

random = np.random.default_rng(0)
y_train = random.integers(0, 4, 144)
x_train = (random.normal(size=(144, 8, 8)) + y_train[:, None, None]).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(144, seed=1).repeat().batch(GLOBAL_BATCH_SIZE)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
dataset = dataset.with_options(options)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=keras.optimizers.SGD(learning_rate=0.01), metrics=["accuracy"])

callbacks = [
    keras.callbacks.BackupAndRestore(backup_dir=os.path.join(directory, "backup")),
    keras.callbacks.ModelCheckpoint(os.path.join(directory, "{epoch}.keras")),
]
history = model.fit(dataset, epochs=3, steps_per_epoch=6, callbacks=callbacks, verbose=0)

is_chief = strategy.cluster_resolver is None or strategy.cluster_resolver.task_id in (0, None)
if is_chief:
    model.save(os.path.join(directory, "model.keras"))
    loaded = keras.models.load_model(os.path.join(directory, "model.keras"))
    loaded_weights = [v.numpy() for v in loaded.weights]
    files = sorted(os.listdir(directory))

results = {"weights": [v.numpy() for v in model.weights], "history": history.history}
if is_chief:
    results |= {"loaded": loaded_weights, "files": files}
