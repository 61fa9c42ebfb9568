"""A training that is killed, stopped and asked to stop on its way, and that says in the end what it has come to.

python -m launch local --ps=1 --workers=2 --chaos=... -- benchmarks.programs.chaos_tf2dist ps OUT STEPS

The process that leads appends the time and its steps to OUT/progress after each execution.
"""

from __future__ import annotations

import pathlib
import sys
import time

import tf2dist

STEPS_PER_EPOCH = 40
STEPS_PER_EXECUTION = 4
CHECKPOINT_STEPS = 20
_BATCH = 16
_PAUSE = 0.02  # seconds after each execution: steps as short as these would be over before anything can happen


def main(name: str, out: pathlib.Path, steps: int) -> None:
    """Trains `steps` updates, and writes weights and updates to `out`/result.npz.

    It goes on where a checkpoint cannot be written.
    """
    strategy = tf2dist.join("ps" if name.startswith("ps") else name, replicas=2 if name == "mirrored" else None)

    import keras
    import numpy as np

    leads = name != "multiworker" or strategy.cluster_resolver.task_id == 0

    class Progress(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self._before = epoch * STEPS_PER_EPOCH

        def on_train_batch_end(self, batch, logs=None):
            if leads:
                with open(out / "progress", "a") as file:
                    file.write(f"{time.time()} {self._before + batch + 1}\n")
            time.sleep(_PAUSE)

    draw = np.random.default_rng(0)
    rows = STEPS_PER_EPOCH * _BATCH
    keras.utils.set_random_seed(0)
    with strategy.scope():
        if name == "ps":  # no two runs have the same weights, but each update adds 1 to this one
            x, y = np.ones([rows, 1], "float32"), np.zeros([rows, 1], "float32")
            model = keras.Sequential(
                [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
            )
            model.compile(keras.optimizers.SGD(1.0), lambda _, outputs: -keras.ops.sum(outputs, axis=-1))
        else:
            x = draw.normal(size=[rows, 8]).astype("float32")
            y = x.sum(axis=1, keepdims=True)
            layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.1, seed=1), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((8,)), *layers])
            model.compile("adam", "mse")
    tf2dist.fit(
        model,
        (x, y),
        batch_size=_BATCH,
        epochs=steps // STEPS_PER_EPOCH,
        steps_per_execution=STEPS_PER_EXECUTION,
        parameter_server=tf2dist.ParameterServer("sync" if name == "ps-sync" else "async"),
        callbacks=[
            Progress(),
            tf2dist.Checkpoint(out / "checkpoints", every_steps=CHECKPOINT_STEPS, required=False),
        ],
        verbose=0,
    )
    if leads:
        weights = {f"weight {n}": weight for n, weight in enumerate(model.get_weights())}
        np.savez(out / "result.npz", updates=tf2dist.updates(model), **weights)


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]))
