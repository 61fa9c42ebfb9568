"""Run in every process of a job with parameter servers: trains in many ways on workers with a device that servers lack.

python -m tests.programs.far_workers OUT [WAY ...]

WAY is a key of WAYS; all of them by default. A second CPU device stands in for a worker's GPU, and placement is hard,
as in trainers: what asks for this device on a server ends the job.
"""

import functools
import json
import pathlib
import sys

import keras
import tensorflow as tf

import tf2dist
from tests.gpu.test_kernels import without_gpu_kernel
from tests.gpu.traces import nodes_traced
from tests.models import OPTIMIZERS, TABLE_OPTIMIZERS, classifier, data, embedder, sentences, weights
from tests.programs.on_gpus import record_devices
from tf2dist.runtime import devices, tensorflow_config_proto

FAR = "/device:CPU:1"  # of workers
EPOCHS = 2


def dense(*extra, optimizer=OPTIMIZERS["momentum"]):
    return (lambda: classifier(optimizer(), *(layer() for layer in extra))), data


def large():
    kernel = keras.initializers.GlorotUniform(seed=4)
    return keras.layers.Dense(400, kernel_initializer=kernel)


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0, dynamic_growth_steps=5)


def table(name):
    return (lambda: embedder(TABLE_OPTIMIZERS[name]())), sentences


def shards(name):
    embedding = functools.partial(tf2dist.layers.ShardedEmbedding, shards=3)
    return (lambda: embedder(TABLE_OPTIMIZERS[name](), embedding)), sentences


CLIPPED = functools.partial(keras.optimizers.Adam, 0.01, clipnorm=1.0, use_ema=True)
STATISTICS = functools.partial(keras.layers.BatchNormalization, momentum=0.8)
SYNCHRONOUS, LOCAL = {"update": "sync"}, {"local_steps": 3}
# By name: model and data, what `fit` is told of parameter servers, and the kind of data.
WAYS = {
    "asynchronous": (*dense(), {}, "arrays"),
    "synchronous": (*dense(STATISTICS), SYNCHRONOUS, "arrays"),
    "local steps": (*dense(optimizer=OPTIMIZERS["adam"]), LOCAL, "arrays"),
    "sgd": (*dense(optimizer=OPTIMIZERS["sgd"]), {}, "arrays"),  # in one operation, without a mutex
    "large weights": (*dense(large, large), {}, "arrays"),
    "large weights, local steps": (*dense(large, large), LOCAL, "arrays"),
    "statistics": (*dense(STATISTICS), {}, "arrays"),
    "clipped": (*dense(optimizer=CLIPPED), {}, "arrays"),
    "clipped, synchronous": (*dense(optimizer=CLIPPED), SYNCHRONOUS, "arrays"),
    "scaled": (*dense(optimizer=scaled), {}, "arrays"),
    "scaled, local steps": (*dense(optimizer=scaled), LOCAL, "arrays"),
    "table": (*table("adam"), {}, "arrays"),
    "table, synchronous": (*table("momentum"), SYNCHRONOUS, "arrays"),
    "table, local steps": (*table("sgd"), LOCAL, "arrays"),
    "shards": (*shards("adagrad"), {}, "arrays"),
    "shards, synchronous": (*shards("adam"), SYNCHRONOUS, "arrays"),
    "dataset": (*dense(), {}, "dataset"),
    "python": (*dense(), {}, "python"),
    "python, synchronous": (*dense(), SYNCHRONOUS, "python"),
}


def give_workers_a_far_device() -> None:
    """Has workers, and the coordinator, make two CPU devices, of which tf.distribute takes the second for a GPU."""
    from tensorflow.python.distribute.parameter_server_strategy_v2 import ParameterServerStrategyV2Extended

    make = tensorflow_config_proto.make

    def make_with_two(cluster):
        options = make(cluster)
        options.device_count["CPU"] = 1 if cluster.task.job == "ps" else 2
        return options

    tensorflow_config_proto.make = make_with_two
    devices.on_accelerators = lambda strategy: True  # the way that batches take to GPUs
    ParameterServerStrategyV2Extended._set_num_gpus = lambda self: setattr(self, "_num_gpus_per_worker", 1)
    ParameterServerStrategyV2Extended.worker_devices = property(
        lambda self: (FAR if self._num_gpus_per_worker else "/device:CPU:0",)
    )


def rows_of(kind: str, rows):
    """What is trained on, and how large its batches are: `fit` makes those of arrays only."""
    if kind == "arrays":
        return rows, {"batch_size": 16, "seed": 3}
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(16)
    if kind == "dataset":
        return batches, {}

    def generate():
        while True:
            yield from batches.as_numpy_iterator()

    return generate(), {"steps_per_epoch": 7}


def train(way: str, strategy=None) -> dict:
    """What a training comes to; without a strategy that of this process, which is what it is compared with."""
    make, rows, updates, kind = WAYS[way]
    with (strategy or tf.distribute.get_strategy()).scope():
        model = make()
    options = {} if strategy is None else {"parameter_server": tf2dist.ParameterServer(**updates)}
    x, sizes = rows_of(kind, rows())
    history = tf2dist.fit(model, x, epochs=EPOCHS, validation_data=rows(1), verbose=0, **sizes, **options)
    return {
        "weights": [w.tolist() for w in weights(model)],
        "loss": history.history["val_loss"],
        "updates": tf2dist.updates(model),
        "predicted": tf2dist.predict(model, rows(1)[0], batch_size=16).tolist(),
        "variables": sorted({v.value.device for v in model.trainable_variables}),
    }


def refusal() -> str:
    """What TensorFlow says when a server is asked for the workers' device."""
    try:
        with tf.device(f"/job:ps/replica:0/task:0{FAR}"):
            tf.identity(tf.function(lambda: tf.zeros([]))())
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        return str(error)
    return ""


def main() -> None:
    out, ways = pathlib.Path(sys.argv[1]), sys.argv[2:] or WAYS
    give_workers_a_far_device()
    strategy, steps = tf2dist.join("ps"), set()
    tf.config.set_soft_device_placement(False)
    record_devices(steps)
    results: dict = {"refusal": refusal(), "ways": {}}
    with nodes_traced() as nodes:
        for way in ways:
            try:
                results["ways"][way] = train(way, strategy)
            except Exception as error:  # the other ways shall run
                results["ways"][way] = f"{type(error).__name__}: {error}"
    far = [node for node in nodes if node.device.endswith(FAR)]
    results |= {"steps": sorted(steps), "far": len(far), "without kernel": without_gpu_kernel(far, "CPU:1")}
    (out / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
