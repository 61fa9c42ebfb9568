"""Chooses how replicas on GPUs all-reduce their gradients, and logs the reason when it is not NCCL.

NCCL is the fastest, and refuses two replicas on one GPU: logical devices of one, or processes that share one.
TensorFlow's own choice looks at how many devices there are, not at which GPU they are on (`MirroredExtended.
_make_collective_ops_with_fallbacks`), and between processes `AUTO` never is NCCL (`CollectiveParamResolverLocal::
AssignCollectiveType` wants the hint "nccl", or an option that TensorFlow 2 does not set).
"""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Sequence

import tensorflow as tf

from tf2dist.runtime import devices
from tf2dist.system import environment_variables

_log = logging.getLogger("tf2dist")


class Reduction(enum.Enum):
    """How gradients are reduced."""

    DEFAULT = "TensorFlow's own choice"  # replicas on CPUs, or one replica
    NCCL = "NCCL"
    ONE_DEVICE = "a reduction on one device"
    RING = "TensorFlow's ring"


def choose(gpus: Sequence[int], processes: int, shared_by: int) -> Reduction:
    """Returns what adds up the gradients of a job.

    Args:
      gpus: the physical GPU of each replica of this process, by number; empty on CPUs.
      processes: that train together; each must come to the same choice.
      shared_by: how many processes of the job use one GPU.
    """
    shared = shared_by > 1 or len({*gpus}) < len(gpus)
    if not gpus or (processes == 1 and len(gpus) == 1):
        return Reduction.DEFAULT
    if not shared:
        return Reduction.NCCL
    return Reduction.ONE_DEVICE if processes == 1 else Reduction.RING


def within_process(replicas: Sequence[str]) -> tf.distribute.CrossDeviceOps | None:
    """Returns what adds up gradients between the devices of this process; None for TensorFlow's own choice."""
    reduction = choose(devices.physical_gpus(replicas), 1, 1)
    if reduction is Reduction.ONE_DEVICE:
        _say(reduction)
        return tf.distribute.ReductionToOneDevice()
    return None  # MirroredStrategy takes NCCL by itself where each device is a GPU


def between_processes(replicas: Sequence[str], processes: int) -> tf.distribute.experimental.CommunicationOptions:
    """Returns how processes with these replicas each exchange gradients."""
    shared_by = environment_variables.count(environment_variables.GPUS_SHARED_BY, os.environ) or 1
    reduction = choose(devices.physical_gpus(replicas), processes, shared_by)
    kinds = tf.distribute.experimental.CommunicationImplementation
    if reduction in (Reduction.RING, Reduction.ONE_DEVICE):
        _say(Reduction.RING)
    chosen = kinds.AUTO if reduction is Reduction.DEFAULT else kinds.RING
    if reduction is Reduction.NCCL:
        chosen = kinds.NCCL
    return tf.distribute.experimental.CommunicationOptions(implementation=chosen)


def _say(reduction: Reduction) -> None:
    _log.info("tf2dist: replicas share a GPU, which NCCL refuses: gradients are added by %s", reduction.value)
