"""The same training by Keras 2's own `Model.fit` under a ParameterServerStrategy: every task runs this.

python -m launch local --ps=1 --workers=2 -- benchmarks.programs.ps_tf_keras OUT STEPS BATCH STEPS_PER_EXECUTION
"""

from __future__ import annotations

import json
import pathlib
import sys
import threading
import time

import numpy as np
import tensorflow as tf

from tf2dist.data import synthetic_dataset

_POLL_SECONDS = 0.05


def main(out: pathlib.Path, steps: int, batch: int, steps_per_execution: int) -> None:
    """Serves, or trains for `steps` updates and writes when how many were made to `out`/coordinator.json."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    written = out / "coordinator.json"
    if resolver.task_type == "chief":
        points = _coordinate(resolver, steps, batch, steps_per_execution)
        unfinished = out / "coordinator.part"
        unfinished.write_text(json.dumps(points))
        unfinished.rename(written)
        return
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    assert server.target
    while not written.exists():  # `server.join()` never returns
        time.sleep(_POLL_SECONDS)
    time.sleep(3.0)  # the coordinator ends first, or it logs at length that nobody is there


def _coordinate(resolver, steps: int, batch: int, steps_per_execution: int) -> list[tuple[float, int]]:
    import tf_keras  # pyright: ignore[reportMissingImports]

    strategy = tf.distribute.ParameterServerStrategy(resolver)

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        (pixels, labels), _ = synthetic_dataset.load(train=60_000, test=1)
        dataset = tf.data.Dataset.from_tensor_slices((pixels.reshape(-1, 784), labels))
        dataset = dataset.shuffle(len(pixels)).repeat().batch(batch, drop_remainder=True)
        return dataset.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y)).prefetch(2)

    with strategy.scope():
        model = tf_keras.Sequential(
            [
                tf_keras.layers.InputLayer((784,)),
                tf_keras.layers.Dense(100, activation="sigmoid"),
                tf_keras.layers.Dense(10),
            ]
        )
        model.compile(
            tf_keras.optimizers.SGD(1e-3),
            tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
    points: list[tuple[float, int]] = []
    over = threading.Event()

    def watch() -> None:  # callbacks for batches are refused under this strategy
        while not over.is_set():
            points.append((time.perf_counter(), int(np.asarray(model.optimizer.iterations))))
            over.wait(_POLL_SECONDS)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        model.fit(tf_keras.utils.experimental.DatasetCreator(batches), steps_per_epoch=steps, verbose=0)
    finally:
        over.set()
        watcher.join()
    return [*points, (time.perf_counter(), int(np.asarray(model.optimizer.iterations)))]


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:]))
