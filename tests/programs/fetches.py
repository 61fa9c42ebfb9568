"""A coordinator, its server and workers in one process, which fetches results of many dtypes from all workers at once.

It prints how many functions TensorFlow made to copy them. More than one worker is dangerous for TensorFlow's own way:
it is what `tf2dist.compat.fetched_results` mends.

python -m tests.programs.fetches ours|theirs WORKERS
"""

import sys

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl
from tensorflow.python.eager import context

from tests.programs.in_process import make_strategy
from tf2dist.compat import fetched_results, scheduled_functions

whose, workers = sys.argv[1], int(sys.argv[2])
_DTYPES = (
    *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64),
)

strategy = make_strategy(workers)
if whose == "theirs":
    fetched_results._Result._copy_to_local = RemoteValueImpl._copy_to_local
# TensorFlow's default; without it, as `tf2dist.compat.eager_operations` has it, copies are no functions either.
pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(context.context()._handle, True)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def ones():
    return [tf.cast(1, dtype) for dtype in _DTYPES]


for remote in [coordinator.schedule(ones) for _ in range(20 * workers)]:
    for dtype, one in zip(_DTYPES, remote.fetch(), strict=True):
        assert one == 1
        assert one.dtype == dtype.as_numpy_dtype
assert whose == "theirs" or isinstance(coordinator._cluster.closure_queue, scheduled_functions._ObservedQueue)
# Other coordinators, and what they return, stay TensorFlow's.
assert cluster_coordinator._CoordinatedClosureQueue.__module__ == cluster_coordinator.__name__
assert RemoteValueImpl(None, None)._copy_to_local.__module__ == RemoteValueImpl.__module__
print(sum("Identity" in str(name) for name in context.context().list_function_names()), flush=True)
