"""A coordinator, its server and six workers in one process, which fetches results of many dtypes from all at once.

python -m tests.programs.fetches ours|theirs
"""

import sys

import tensorflow as tf
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl

import tf2dist
from tf2dist import Cluster, Task
from tf2dist.launch import free_ports

_WORKERS = 6
_DTYPES = (
    *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64),
)

theirs = RemoteValueImpl._copy_to_local
with free_ports.hold(_WORKERS + 2) as ports:
    chief, ps, *workers = map("127.0.0.1:{}".format, ports)
    cluster = Cluster({"chief": (chief,), "ps": (ps,), "worker": tuple(workers)}, Task("chief", 0))
servers = [
    tf.distribute.Server(cluster.spec, job_name=task.job, task_index=task.index, protocol="grpc")
    for task in cluster.tasks
    if task.job != "chief"
]
strategy = tf2dist.make_strategy("ps", cluster=cluster)
if sys.argv[1] == "theirs":
    RemoteValueImpl._copy_to_local = theirs
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def ones():
    return [tf.cast(1, dtype) for dtype in _DTYPES]


for remote in [coordinator.schedule(ones) for _ in range(20 * _WORKERS)]:
    for dtype, one in zip(_DTYPES, remote.fetch(), strict=True):
        assert one == 1
        assert one.dtype == dtype.as_numpy_dtype
print("all fetched", flush=True)
