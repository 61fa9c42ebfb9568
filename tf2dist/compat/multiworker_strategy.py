"""A `MultiWorkerMirroredStrategy` with several replicas on a process's CPU, whose peers may be silent for a while."""

from __future__ import annotations

import contextlib

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy
from tensorflow.python.eager import context

from tf2dist.compat.patching import Patch


def multi_worker_mirrored(
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
    options: tf.distribute.experimental.CommunicationOptions,
    silence: float,
    cpus: int = 0,
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Makes the strategy.

    TensorFlow counts a process's replicas by the resolver's GPUs, or TPUs; without them it is one, however many logical
    CPU devices there are (`CollectiveAllReduceExtended._initialize_local_devices` in
    tensorflow/python/distribute/collective_all_reduce_strategy.py). Collectives between CPU devices work all the same.

    Its coordination service ends all peers when one has been silent for 10 s, which a busy host can make of one that is
    well, and the strategy has no argument for it (`_initialize_multi_worker` in the same file, and
    `heartbeat_timeout_in_ms` in tensorflow/core/protobuf/coordination_config.proto).

    Args:
      resolver, options: TensorFlow's arguments.
      silence: seconds that a peer may be silent, at least.
      cpus: logical CPU devices that each compute a replica; 0 where GPUs do, or only one.
    """

    def local_devices(extended, cluster_resolver, worker_device):
        return tuple(f"{worker_device}/device:CPU:{number}" for number in range(cpus)), "CPU"

    def configure(of, *args, **kwargs):
        # Heartbeats have half of it to come and to be answered.
        kwargs.setdefault("heartbeat_timeout_in_ms", round(2 * silence * 1000))
        patient.original("configure_coordination_service")(of, *args, **kwargs)

    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    patient = Patch(context.Context, {"configure_coordination_service": configure})
    with contextlib.ExitStack() as patches:
        patches.enter_context(patient.applied())
        if cpus > 1:
            patches.enter_context(Patch(extended, {"_initialize_local_devices": local_devices}).applied())
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver, communication_options=options)
