"""Parameter servers with a loop of one's own and preprocessing layers
(https://www.tensorflow.org/tutorials/distribute/parameter_server_training).
"""

import keras
import tensorflow as tf

keras.utils.set_random_seed(1)
cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(cluster_resolver.cluster_spec(), protocol="grpc")
    server.join()
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver)

feature_vocab = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
label_vocab = ["yes", "no"]

with strategy.scope():
    feature_lookup_layer = keras.layers.StringLookup(vocabulary=feature_vocab, mask_token=None)
    label_lookup_layer = keras.layers.StringLookup(vocabulary=label_vocab, num_oov_indices=0, mask_token=None)
    model_input = keras.Input(shape=(3,), dtype="int64", name="model_input")
    emb_layer = keras.layers.Embedding(input_dim=len(feature_lookup_layer.get_vocabulary()), output_dim=16)
    dense_output = keras.layers.Dense(units=1, activation="sigmoid")(keras.ops.mean(emb_layer(model_input), axis=1))
    model = keras.Model({"features": model_input}, dense_output)
    optimizer = keras.optimizers.SGD(learning_rate=0.5)
    optimizer.build(model.trainable_variables)
    hits = tf.Variable(0.0, trainable=False)
    rows = tf.Variable(0.0, trainable=False)


def dataset_fn(_):
    """Names with a label: is "avenger" among the three?"""
    names = tf.gather(feature_vocab, tf.random.stateless_uniform((200, 3), (1, 2), 0, len(feature_vocab), tf.int32))
    label = tf.where(tf.reduce_any(names == "avenger", axis=1), "yes", "no")
    dataset = tf.data.Dataset.from_tensor_slices({"features": names, "label": label})

    def looked_up(x):
        return {"features": feature_lookup_layer(x["features"])}, label_lookup_layer(x["label"][None])

    return dataset.shuffle(200).repeat().map(looked_up).batch(32)


@tf.function
def step_fn(iterator):
    def replica_fn(batch_data, labels):
        with tf.GradientTape() as tape:
            pred = model(batch_data, training=True)
            loss = keras.ops.mean(keras.losses.binary_crossentropy(labels, pred))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        actual = tf.cast(tf.greater(pred, 0.5), tf.int64)
        hits.assign_add(tf.reduce_sum(tf.cast(actual == tf.cast(labels, tf.int64), tf.float32)))
        rows.assign_add(tf.cast(tf.size(labels), tf.float32))
        return loss

    batch_data, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_data, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
accuracies = []
for _ in range(4):
    hits.assign(0.0)
    rows.assign(0.0)
    for _ in range(30):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    accuracies.append(float(hits) / float(rows))
loss = coordinator.schedule(step_fn, args=(per_worker_iterator,)).fetch()

results = {"accuracies": accuracies, "loss": float(loss), "rows": float(rows)}
