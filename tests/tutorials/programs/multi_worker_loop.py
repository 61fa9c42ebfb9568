"""A loop of one's own on several hosts (https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl)."""

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
GLOBAL_BATCH_SIZE, NUM_EPOCHS, STEPS_PER_EPOCH = 24, 2, 6

random = np.random.default_rng(0)
y_train = random.integers(0, 4, 144)
x_train = (random.normal(size=(144, 8, 8, 1)) + y_train[:, None, None, None]).astype("float32")


def dataset_fn(input_context):
    """The rows of this worker: each n-th one, so that the global batches are the same for any number of workers."""
    rows = tf.data.Dataset.from_tensor_slices((x_train, y_train)).repeat()
    rows = rows.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return rows.batch(input_context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE))


with strategy.scope():
    multi_worker_dataset = strategy.distribute_datasets_from_function(dataset_fn)
    multi_worker_model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )
    optimizer = keras.optimizers.RMSprop(learning_rate=0.001)
    optimizer.build(multi_worker_model.trainable_variables)  # Keras 3 cannot in a replica
    train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = multi_worker_model(x, training=True)
            loss = tf.nn.compute_average_loss(loss_object(y, predictions), global_batch_size=GLOBAL_BATCH_SIZE)
        gradients = tape.gradient(loss, multi_worker_model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, multi_worker_model.trainable_variables, strict=True))
        train_accuracy.update_state(y, predictions)
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step_fn, args=(next(iterator),)), axis=None)


directory = os.path.join(tempfile.mkdtemp(), "checkpoints")  # a temporary one, but for the chief's
epoch = tf.Variable(0, name="epoch")
checkpoint = tf.train.Checkpoint(model=multi_worker_model, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, directory=directory, max_to_keep=1)

logs = []
while int(epoch) < NUM_EPOCHS:
    iterator = iter(multi_worker_dataset)
    losses = [float(train_step(iterator)) for _ in range(STEPS_PER_EPOCH)]
    logs.append([sum(losses) / STEPS_PER_EPOCH, float(train_accuracy.result())])
    train_accuracy.reset_state()
    epoch.assign_add(1)
    manager.save()

weights = [v.numpy() for v in multi_worker_model.weights]
for variable in multi_worker_model.weights:
    variable.assign(tf.zeros_like(variable.value))
checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
results = {"weights": weights, "logs": logs, "restored": [v.numpy() for v in multi_worker_model.weights]}
