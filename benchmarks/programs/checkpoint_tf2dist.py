"""A training that saves a large table on the way, with the times of its steps and the memory of its process.

python -m launch local --ps=2 --workers=1 -- benchmarks.programs.checkpoint_tf2dist OUT ps MEGABYTES at_once
python -m benchmarks.programs.checkpoint_tf2dist OUT one MEGABYTES in_background
"""

from __future__ import annotations

import itertools
import json
import pathlib
import statistics
import sys
import threading
import time

import tf2dist

_SAVED, _STEPS = 100, 150  # the step after which it is saved, and how many are made at least
_ROW = 256  # numbers f32 in a row of the table
_IDS = 16  # in an example
_ROWS = 64  # examples


def main(strategy, out: pathlib.Path, megabytes: int, mode: str) -> None:
    """Trains, and writes what was measured to `out`/figures.json.

    Args:
      strategy: of one device, or asynchronous parameter servers.
      out: an empty directory.
      megabytes: of the table that is trained.
      mode: "at_once", "in_background" or "sharded", which is in the background too.
    """
    import keras
    import numpy as np

    rows = megabytes * 2**20 // (4 * _ROW)
    with strategy.scope():
        table = tf2dist.layers.ShardedEmbedding(rows, _ROW, embeddings_initializer="zeros", shards=2)
        model = keras.Sequential([keras.Input((_IDS,), dtype="int32"), table, keras.layers.GlobalAveragePooling1D()])
        model.compile(keras.optimizers.SGD(1.0), "mse")
    ids = np.random.default_rng(0).integers(0, rows, (_ROWS, _IDS), dtype="int32")
    checkpoint = tf2dist.Checkpoint(
        out / "checkpoints", every_steps=_SAVED, in_background=mode != "at_once", sharded=mode == "sharded"
    )
    seen = _Seen(out / "checkpoints")

    def step_has_ended(batch, logs):
        seen.step()
        if batch == _SAVED + 20:
            checkpoint.every_steps = 10**9  # it is saved, and the next one is that of the end
        if batch > _STEPS and seen.written is not None:
            model.stop_training = True

    tf2dist.fit(
        model, ids, np.ones([_ROWS, _ROW], "float32"), batch_size=16, steps_per_epoch=10**6, steps_per_execution=1,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=step_has_ended), checkpoint],
    )  # fmt: skip
    (out / "figures.json").write_text(json.dumps(seen.figures()))


class _Seen:
    """When steps ended, when the first checkpoint was there, and the largest resident memory of this process."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._times: list[float] = []
        self._before = self._most = 0.0
        self.written: float | None = None

    def step(self) -> None:
        self._times.append(time.perf_counter())
        if len(self._times) == _SAVED - 20:
            self._before = self._most = _memory()
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self.written is None:
            self._most = max(self._most, _memory())
            if any(self._directory.glob("checkpoint-*")):
                self.written = time.perf_counter()
            time.sleep(0.005)

    def figures(self) -> dict[str, float]:
        """Seconds: a usual step, the longest since it was saved, and until it was written; MB of memory it took."""
        assert self.written is not None
        gaps = [after - before for before, after in itertools.pairwise(self._times)]
        return {
            "step": statistics.median(gaps),
            "pause": max(gaps[_SAVED - 10 :]),
            "written": self.written - self._times[_SAVED - 1],
            "memory": self._most - self._before,
        }


def _memory() -> float:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


if __name__ == "__main__":
    main(tf2dist.join(sys.argv[2]), pathlib.Path(sys.argv[1]), int(sys.argv[3]), sys.argv[4])
