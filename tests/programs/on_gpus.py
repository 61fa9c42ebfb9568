"""Run in every process of a job: trains in one of several ways, and saves what came out and where it was.

python -m tests.programs.on_gpus WAY OUT

WAY is a key of WAYS. Virtual CPU devices stand in for GPUs unless TF2DIST_TESTS_GPU is gpu.
"""

import functools
import json
import logging
import os
import pathlib
import sys
import types

import tf2dist
from tests.models import OPTIMIZERS, classifier, data, embedder, sentences, weights

PARTS, PART_MIB = 2, 1200  # of a GPU, for each of two processes


def dense():
    return classifier(OPTIMIZERS["momentum"]()), data


def table():
    return embedder(OPTIMIZERS["sgd"]()), sentences


def shards():
    embedding = functools.partial(tf2dist.layers.ShardedEmbedding, shards=2)
    return embedder(OPTIMIZERS["adagrad"](), embedding), sentences


# By name: the strategy, model and data, and what `fit` is told of parameter servers.
WAYS = {
    "ps": ("ps", dense, {"update": "sync"}),
    "asynchronous": ("ps", dense, {}),
    "local steps": ("ps", dense, {"local_steps": 3}),
    "shards": ("ps", shards, {}),
    "mirrored": ("mirrored", dense, None),
    "peers": ("multiworker", dense, None),
    "peers with a table": ("multiworker", table, None),
    "peers on parts": ("multiworker", dense, None),
}


def on_cpus(parts: int) -> None:
    """Has CPU devices take the ways of GPUs: all replicas of a process as parts of one, of which peers know."""
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

    from tf2dist.runtime import choose_all_reduce, devices

    devices.on_accelerators = lambda strategy: True  # the way that batches take on GPUs
    parts_of_one = types.SimpleNamespace(physical_gpus=lambda replicas: [0] * len(replicas))
    choose_all_reduce.devices = parts_of_one
    CollectiveAllReduceExtended._initialize_local_devices = lambda self, resolver, worker: (
        tuple(f"{worker}/device:CPU:{part}" for part in range(parts)), "CPU",
    )  # fmt: skip


def divide_the_gpu() -> None:
    """Makes logical devices of the first GPU, each with a limit of memory."""
    import tensorflow as tf

    gpu = tf.config.list_physical_devices("GPU")[0]
    tf.config.set_visible_devices([gpu], "GPU")
    part = tf.config.LogicalDeviceConfiguration(memory_limit=PART_MIB)
    tf.config.set_logical_device_configuration(gpu, [part] * PARTS)


def record_devices(steps: set) -> None:
    """Adds the device that a step asks for when it is traced; "" where it is left to TensorFlow."""
    import tensorflow as tf

    from tf2dist.execution.keras_train_step import KerasTrainStep

    fractions = KerasTrainStep._fractions

    def recorded(self, *arguments, **options):
        steps.add(tf.zeros([]).device)
        return fractions(self, *arguments, **options)

    KerasTrainStep._fractions = recorded


class Lines(logging.Handler):
    """Keeps what the library logs."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def train(way: str, strategy) -> tuple:
    """A model after two passes, and its history."""
    _, make, updates = WAYS[way]
    with strategy.scope():
        model, rows = make()
    options = {} if updates is None else {"parameter_server": tf2dist.ParameterServer(**updates)}
    history = tf2dist.fit(model, rows(), batch_size=16, seed=3, epochs=2, validation_data=rows(1), **options)
    return model, history.history


def main() -> None:
    way, out = sys.argv[1], pathlib.Path(sys.argv[2])
    name, parts = WAYS[way][0], PARTS if way == "peers on parts" else 1
    logger, log = logging.getLogger("tf2dist"), Lines()
    logger.setLevel(logging.INFO)
    logger.addHandler(log)
    if os.environ.get("TF2DIST_TESTS_GPU", "cpu") != "gpu":
        on_cpus(parts)
    elif parts > 1:
        divide_the_gpu()
    strategy, steps = tf2dist.join(name, replicas=parts if parts > 1 else None), set()
    import tensorflow as tf

    tf.config.set_soft_device_placement(False)  # as in trainers: what is asked for is where it is, or the job ends
    record_devices(steps)
    model, history = train(way, strategy)
    options = getattr(strategy.extended, "_communication_options", None)
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    result = {
        "weights": [w.tolist() for w in weights(model)],
        "history": history,
        "updates": tf2dist.updates(model),
        "variables": [v.value.device for v in model.trainable_variables],
        "replicas": list(strategy.extended.worker_devices),
        "steps": sorted(steps),
        "devices": [d.name for d in tf.config.list_logical_devices()],
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "implementation": options and options.implementation.value,
        "said": [line for line in log.lines if "NCCL" in line],
    }
    (out / f"{task['type']}{task['index']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
