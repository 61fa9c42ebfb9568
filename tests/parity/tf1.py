"""How the TensorFlow 1 side of a parity test begins; only in processes of its own (tests/parity/processes.py)."""

import contextlib
import json
import os


def begin():
    """TensorFlow 1, as `tf`, in its graph mode; with resource variables, so that reads keep to control dependencies."""
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.FATAL)
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
    return tf


def serve(tf, **options):
    """Starts this task's server and returns it with the cluster, the job and the index; a ps joins it for ever."""
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = tf.train.Server(cluster, job_name=job, task_index=index, config=tf.ConfigProto(**options))
    if job == "ps":
        server.join()
    return server, cluster, job, index


def queue(tf, name):
    """A queue on the first ps, the same one for all that ask for this name."""
    with tf.device("/job:ps/task:0/cpu:0"):
        return tf.FIFOQueue(-1, tf.int64, shapes=(), name=name, shared_name=name)


@contextlib.contextmanager
def monitored(tf, server, index, hooks=()):
    """A MonitoredTrainingSession of this worker, one of two.

    A worker that finds the variables not initialized looks again only after 30 seconds, so worker 1 waits for worker
    0 to say that they are. A session that may reach the other worker would wait for it, too.
    """
    config = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    begun = queue(tf, "begun")
    say, wait = begun.enqueue(0), begun.dequeue()
    if index:
        with tf.Session(server.target, config=config) as session:
            session.run(wait)
    with tf.train.MonitoredTrainingSession(
        server.target, index == 0, hooks=hooks, config=config, stop_grace_period_secs=1
    ) as session:
        if not index:
            without_hooks(session, say)
        yield session


def without_hooks(session, fetches):
    """Runs something in a monitored session that is no step."""
    return session.run_step_fn(lambda step_context: step_context.session.run(fetches))
