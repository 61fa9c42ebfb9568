"""A `MultiWorkerMirroredStrategy` whose processes have several replicas each on the CPU."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy

from tf2dist.compat.patching import Patch


def multi_worker_mirrored(
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
    options: tf.distribute.experimental.CommunicationOptions,
    cpus: int = 0,
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Makes the strategy.

    TensorFlow counts a process's replicas by the resolver's GPUs, or TPUs; without them it is one, however many logical
    CPU devices there are (`CollectiveAllReduceExtended._initialize_local_devices` in
    tensorflow/python/distribute/collective_all_reduce_strategy.py). Collectives between CPU devices work all the same.

    Args:
      resolver, options: TensorFlow's arguments.
      cpus: logical CPU devices that each compute a replica; 0 where GPUs do, or only one.
    """
    if cpus < 2:
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver, communication_options=options)

    def local_devices(extended, cluster_resolver, worker_device):
        return tuple(f"{worker_device}/device:CPU:{number}" for number in range(cpus)), "CPU"

    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    with Patch(extended, {"_initialize_local_devices": local_devices}).applied():
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver, communication_options=options)
