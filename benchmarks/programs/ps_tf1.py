"""Asynchronous parameter servers as a TensorFlow 1 program had them: every task runs this, each worker its own loop.

python -m launch local --ps=1 --workers=2 --no-chief -- benchmarks.programs.ps_tf1 OUT STEPS BATCH async|sync
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

import numpy as np
import tensorflow

from tf2dist.data import synthetic_dataset

tf = tensorflow.compat.v1


def main(out: pathlib.Path, steps: int, batch: int, sync: bool) -> None:
    """Serves, or trains until the global step is `steps` and writes when it had which step to `out`/worker-N.json."""
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.disable_v2_behavior()
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], int(config["task"]["index"])
    cluster = tf.train.ClusterSpec(config["cluster"])
    # Without filters a worker's session waits for the other workers, too.
    filters = ["/job:ps", f"/job:{job}/task:{index}"]
    server = tf.train.Server(
        cluster, job_name=job, task_index=index, config=tf.ConfigProto(device_filters=filters if job != "ps" else [])
    )
    if job == "ps":
        _serve(server, cluster.num_tasks("worker"))
    else:
        points = _work(server, cluster, index, steps, batch, sync, out)
        _write(out, index, points)


def _write(out: pathlib.Path, index: int, points: list[tuple[float, int]]) -> None:
    (out / f"worker-{index}.json").write_text(json.dumps(points))


def _tokens(name: str, count: int):
    """A queue on the server: what `server.join()`, which never returns, cannot do."""
    with tf.device("/job:ps/task:0/cpu:0"):
        return tf.FIFOQueue(count, tf.int32, [[]], shared_name=name)


def _serve(server, workers: int) -> None:
    done = _tokens("done", workers).dequeue()
    with tf.Session(server.target) as session:
        for _ in range(workers):
            session.run(done)
    time.sleep(1.0)  # the last worker closes its session


def _work(
    server, cluster, index: int, steps: int, batch: int, sync: bool, out: pathlib.Path
) -> list[tuple[float, int]]:
    (pixels, labels), _ = synthetic_dataset.load(train=60_000, test=1)
    pixels = pixels.reshape(-1, 784).astype(np.float32) / 255.0

    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        x, y = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
        weights = [tf.Variable(tf.random_normal(shape, seed=1)) for shape in ([784, 100], [100, 10])]
        biases = [tf.Variable(tf.zeros([width])) for width in (100, 10)]
        hidden = tf.sigmoid(tf.matmul(x, weights[0]) + biases[0])
        logits = tf.matmul(hidden, weights[1]) + biases[1]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
        global_step = tf.train.get_or_create_global_step()
        workers = cluster.num_tasks("worker")
        optimizer = tf.train.GradientDescentOptimizer(1e-3)
        if sync:
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, workers, total_num_replicas=workers)
        train = optimizer.minimize(loss, global_step=global_step)

    begun, done = _tokens("begun", workers), _tokens("done", workers)
    last = done.enqueue(0)
    hooks = [tf.train.StopAtStepHook(last_step=steps)]
    if sync:
        hooks.append(optimizer.make_session_run_hook(index == 0))
        ended = _tokens("ended", workers)
        if index == 0:
            # Its session makes the updates, for which the others may still wait.
            with tf.control_dependencies([ended.dequeue_many(workers - 1)]):
                last = done.enqueue(0)
        else:
            last = tf.group(last, ended.enqueue(0))
    hooks.append(tf.train.FinalOpsHook(last))
    points: list[tuple[float, int]] = []

    class Leave(tf.train.SessionRunHook):
        """Ends the process: a session with SyncReplicasOptimizer's queue does not close when the server ends first."""

        def end(self, session):
            _write(out, index, points)
            os._exit(0)

    if sync:
        hooks.append(Leave())
    announce = begun.enqueue_many([[0] * (workers - 1)])
    if index:
        # A worker that finds the variables not initialized looks again only after 30 s.
        with tf.Session(server.target) as session:
            session.run(begun.dequeue())
    order, at = np.random.permutation(len(pixels)), 0
    with tf.train.MonitoredTrainingSession(server.target, is_chief=index == 0, hooks=hooks) as session:
        if index == 0:
            session.run_step_fn(lambda step_context: step_context.session.run(announce))
        while not session.should_stop():
            if at + batch > len(order):
                order, at = np.random.permutation(len(pixels)), 0
            rows, at = order[at : at + batch], at + batch
            fetched = session.run([train, loss, accuracy, global_step], {x: pixels[rows], y: labels[rows]})
            points.append((time.perf_counter(), int(fetched[-1])))
    return points


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "sync")
