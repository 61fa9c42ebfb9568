"""Run in every process of a parameter server job: a worker is killed before the coordinator has fetched its result.

python -m tests.programs.lost_result OUT
"""

import pathlib
import sys
import time

import tf2dist

strategy = tf2dist.join("ps")
out = pathlib.Path(sys.argv[1])

import tensorflow as tf  # noqa: E402
from tensorflow.python.distribute.coordinator import cluster_coordinator, values  # noqa: E402

from tf2dist.compat.fetched_results import fetch_without_function  # noqa: E402

remote = values.RemoteValueImpl(None, None)
fetch_without_function(remote)
with tf.device("/job:worker/task:1"):
    remote._set_values([tf.constant(1) + 1, None, tf.ragged.constant([[1], [2, 3]])])
assert remote._copy_to_local()[0] == 2
(out / "under_way").write_text("")
while not (out / "killed").exists():
    time.sleep(0.02)


def error():
    try:
        remote.get()
    except tf.errors.OpError as failed:
        return failed
    return None


for _ in range(2):  # a connection that breaks, and one that cannot be made
    assert cluster_coordinator._is_worker_failure(error())
