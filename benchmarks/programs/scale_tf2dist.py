"""Asynchronous training whose batches take a while each and no processor, with one worker lost on the way.

python -m launch local --ps=1 --workers=4 -- benchmarks.programs.scale_tf2dist OUT SECONDS EVENT BATCH MEGABYTES

EVENT is kill, stop or none; BATCH the seconds that a batch takes, and MEGABYTES those of the weights.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import threading
import time

import tf2dist

_WARM = 3  # updates by each worker, before anything is measured
_SETTLE = 1.0  # seconds from the loss of a worker to what is measured without it
_LIMIT = 200.0  # seconds until all workers have begun


def main(strategy, out: pathlib.Path, seconds: float, event: str, batch_seconds: float, megabytes: float) -> None:
    """Trains, and writes what was counted before and after `event`, and at the end, to `out`/coordinator.json."""
    import keras
    import tensorflow as tf

    workers = tf2dist.Cluster.from_tf_config(os.environ["TF_CONFIG"]).count("worker")

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        mine = tf.one_hot([context.input_pipeline_id], workers)  # f32[1, workers]
        wanted = tf.data.Dataset.from_tensors((mine, tf.zeros([1, 1]))).repeat()
        slow = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(wanted),
            sleep_microseconds=tf.constant(round(batch_seconds * 1e6), tf.int64),
            output_types=[tf.float32, tf.float32],
            output_shapes=[[1, workers], [1, 1]],
        )
        return tf.data.experimental.from_variant(slow, wanted.element_spec)

    with strategy.scope():
        # Each update adds 1 to the weights of the worker that has made it; which gradient it is the weights decide, so
        # that it is sent when they have come.
        width = max(1, round(megabytes * 1e6 / 4 / workers))
        model = keras.Sequential(
            [keras.Input((workers,)), keras.layers.Dense(width, use_bias=False, kernel_initializer="zeros")]
        )
        loss = lambda _, outputs: -keras.ops.sum(keras.ops.relu(outputs + 1.0), axis=-1)  # noqa: E731
        model.compile(keras.optimizers.SGD(1.0), loss)
    watch = Watch(model, workers, seconds, event)

    class Begin(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            watch.thread.start()

    steps = round(workers * (2 * seconds + _SETTLE + 6.0) / batch_seconds)  # what is begun early and late included
    tf2dist.fit(model, batches, steps_per_epoch=steps, callbacks=[Begin()], verbose=0)
    watch.thread.join()
    found = watch.found | {"asked": steps, "counted": tf2dist.updates(model), "applied": sum(watch.by_worker())}
    (out / "coordinator.json").write_text(json.dumps(found))


class Watch:
    """Counts each worker's updates for some seconds, kills or stops the last worker, and counts again."""

    def __init__(self, model, workers: int, seconds: float, event: str):
        self._model, self._workers, self._seconds, self._event = model, workers, seconds, event
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.found: dict = {}

    def by_worker(self) -> list[float]:
        """The updates that each worker has made."""
        return self._model.trainable_variables[0].numpy()[:, 0].tolist()

    def _watch(self) -> None:
        deadline = time.monotonic() + _LIMIT
        while min(self.by_worker()) < _WARM and time.monotonic() < deadline:
            time.sleep(0.1)
        self.found["before"] = self._window()
        if self._event == "none":
            return
        pid = process_of(self._workers - 1)
        os.kill(pid, signal.SIGKILL if self._event == "kill" else signal.SIGSTOP)
        try:
            time.sleep(_SETTLE)
            self.found["after"] = self._window()
        finally:
            if self._event == "stop":
                os.kill(pid, signal.SIGCONT)

    def _window(self) -> dict:
        """Updates a second of each worker, and the cores that this process has used meanwhile."""
        begin = time.monotonic(), time.process_time(), self.by_worker()
        time.sleep(self._seconds)
        end = time.monotonic(), time.process_time(), self.by_worker()
        took = end[0] - begin[0]
        rates = [(high - low) / took for low, high in zip(begin[2], end[2], strict=True)]
        return {"rates": rates, "cores": (end[1] - begin[1]) / took}


def process_of(worker: int) -> int:
    """The process id of a worker that the same launcher has started.

    Raises:
      LookupError: there is none.
    """
    from tf2dist.system import linux

    for pid in linux.descendants(os.getppid()):
        try:
            if pathlib.Path(f"/proc/{pid}/comm").read_text() == f"worker {worker}\n":
                return pid
        except OSError:  # it has ended meanwhile
            continue
    raise LookupError(f"no process here is worker {worker}")


if __name__ == "__main__":
    joined = tf2dist.join("ps")
    main(joined, pathlib.Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], *map(float, sys.argv[4:]))
