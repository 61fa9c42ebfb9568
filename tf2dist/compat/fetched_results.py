"""Results of functions on workers, fetched without another function that TensorFlow makes for it."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl
from tensorflow.python.eager import context

from tf2dist.compat.executor_per_thread import in_own_executor


def fetch_without_function(remote: RemoteValueImpl) -> None:
    """Makes the threads of a `ClusterCoordinator`, one for each worker, copy this result by `Tensor.numpy`.

    They call `tf.identity` (RemoteValueImpl._copy_to_local in tensorflow/python/distribute/coordinator/values.py),
    which TensorFlow runs as a function with a part on the worker. What it knows about such parts is in one vector,
    which grows with each new one. `EagerClusterFunctionLibraryRuntime::Run` keeps a pointer into it after it has let
    go of the lock (tensorflow/core/distributed_runtime/eager/cluster_function_library_runtime.cc, `function_data =
    &function_data_[handle]`), so it reads freed memory if another thread makes the vector grow just then, by the first
    result of a dtype or from a worker. The message to the worker has a garbled device ("String field
    'tensorflow.eager.Operation.device' contains invalid UTF-8 data"), or the process crashes. Copies by `Tensor.numpy`
    are no functions, and no slower. The main thread may use functions with remote parts, but no second one.
    """
    remote.__class__ = _Result


class _Result(RemoteValueImpl):
    def _copy_to_local(self):
        with in_own_executor(), tf.device(f"/job:{context.get_server_def().job_name}"):
            return tf.nest.map_structure(_copied, self._values)


def _copied(value):
    """The same in this process: a tensor, or what consists of tensors; None and iterators stay as they are."""
    if value is None or isinstance(value, tf.distribute.DistributedIterator):
        return value
    return tf.nest.map_structure(_copied_tensor, value, expand_composites=True)


def _copied_tensor(tensor):
    if not isinstance(tensor, tf.Tensor) or not tensor.dtype.is_numpy_compatible:
        return tf.identity(tensor)
    try:
        return tf.constant(tensor.numpy(), tensor.dtype)
    except tf.errors.OpError as error:
        # The coordinator tells by its text whether an error is that of a lost worker.
        raise type(error)(error.node_def, error.op, f"{error.message} (copying from {tensor.device})") from error
