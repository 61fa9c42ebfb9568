"""A Keras model on parameter servers, by `Model.fit`
(https://www.tensorflow.org/tutorials/distribute/parameter_server_training).
"""

import os
import tempfile

import keras
import tensorflow as tf

keras.utils.set_random_seed(1)
cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    config = tf.compat.v1.ConfigProto()
    server = tf.distribute.Server(cluster_resolver.cluster_spec(), config=config, protocol="grpc")
    server.join()
partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=256 << 10, max_shards=2)
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver, variable_partitioner=partitioner)


def dataset_fn(input_context):
    global_batch_size = 64
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    x = tf.random.stateless_uniform((192, 10), seed=(1, 2))
    y = tf.reduce_sum(x, axis=1, keepdims=True)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(192).repeat()
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(batch_size).prefetch(2)


with strategy.scope():
    model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(10)])
    model.compile(keras.optimizers.SGD(0.05), loss="mse", steps_per_execution=10)

working_dir = tempfile.mkdtemp()
callbacks = [
    keras.callbacks.TensorBoard(log_dir=os.path.join(working_dir, "log")),
    keras.callbacks.ModelCheckpoint(filepath=os.path.join(working_dir, "{epoch}.keras")),
    keras.callbacks.BackupAndRestore(backup_dir=os.path.join(working_dir, "backup")),
]
data = keras.utils.experimental.DatasetCreator(dataset_fn)
history = model.fit(data, epochs=5, steps_per_epoch=20, callbacks=callbacks)

results = {
    "history": history.history,
    "iterations": int(model.optimizer.iterations),
    "files": sorted(os.listdir(working_dir)),
}
