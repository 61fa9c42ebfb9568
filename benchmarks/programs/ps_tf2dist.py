"""The same training as `ps_tf1` with `tf2dist.fit`: every task runs this, the coordinator goes on after `join`.

python -m launch local --ps=1 --workers=2 -- benchmarks.programs.ps_tf2dist OUT STEPS BATCH async|local_steps|sync
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

import tf2dist


def main(strategy, out: pathlib.Path, steps: int, batch: int, options: tf2dist.ParameterServer) -> None:
    """Trains for `steps` updates and writes when how many of them were made to `out`/coordinator.json."""
    from tf2dist.data import synthetic_dataset
    from trainers.common.image_batches import scale_pixels
    from trainers.mnist_networks import PRESETS

    class Watch(tf2dist.ExecutionCallback):
        points: list[tuple[float, int]] = []  # noqa: RUF012

        def on_train_batch_end(self, batch, logs=None):
            self.points.append((time.perf_counter(), tf2dist.updates(self.model)))

    (pixels, labels), _ = synthetic_dataset.load(train=60_000, test=1)
    feed = tf2dist.Examples((pixels, labels), batch, seed=1, transform=scale_pixels)
    with strategy.scope():
        model = PRESETS["sigmoid"].build(1e-3)
    watch = Watch()
    tf2dist.fit(model, feed, steps_per_epoch=steps, callbacks=[watch], parameter_server=options)
    (out / "coordinator.json").write_text(json.dumps(watch.points))


OPTIONS = {
    "async": tf2dist.ParameterServer(),
    "local_steps": tf2dist.ParameterServer(local_steps=10),
    "sync": tf2dist.ParameterServer(update="sync"),
}

if __name__ == "__main__":
    joined = tf2dist.join("ps")
    main(joined, pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), OPTIONS[sys.argv[4]])
