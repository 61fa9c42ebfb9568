"""Tensors that are sent to the workers of a `ClusterCoordinator`, and iterators there over datasets made of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator.values import PerWorkerDistributedIterator


class _Wanted:
    """A weakly referenced marker that is garbage collected with the iterators that hold it."""


def open_iterators(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    make_dataset: Any,
    send: Callable[[Callable[[], bool]], Sequence[tf.Tensor] | None],
) -> Any:
    """Opens an iterator over `make_dataset(*tensors)` on each worker; returns them as an argument of functions.

    `ClusterCoordinator.create_per_worker_dataset` takes a function without arguments
    (`PerWorkerDatasetFromDatasetFunction` in tensorflow/python/distribute/coordinator/values.py): tensors that it reads
    are there as a whole in this process until the last worker has them, and each worker's message is another copy.

    Args:
      make_dataset: a concrete function.
      send: `send(is_wanted)` returns the tensors on the worker of the current device scope, or None if `is_wanted()`
        is false, since nobody has the iterators any more. It is called in a thread of that worker's, and again when it
        has come back after it was lost.
    """
    spec = input_lib.get_iterator_spec_from_dataset(coordinator.strategy, make_dataset.structured_outputs)
    opened = send_tensors(coordinator, send, lambda tensors: iter(make_dataset(*tensors)), spec)
    iterators = PerWorkerDistributedIterator(opened._values)
    iterators._wanted = opened._wanted
    return iterators


def send_tensors(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    send: Callable[[Callable[[], bool]], Sequence[tf.Tensor] | None],
    make: Callable[[Sequence[tf.Tensor]], Any],
    spec: Any,
) -> Any:
    """Sends tensors to each worker; returns what `make(tensors)` returns there, as an argument of functions.

    TensorFlow has no public way to make such an argument, but iterators (`PerWorkerValues` in
    tensorflow/python/distribute/coordinator/values.py).

    Args:
      send: as for `open_iterators`.
      spec: nested type specs of what `make` returns, with which functions are traced.
    """
    wanted = _Wanted()
    known = weakref.ref(wanted)

    def send_and_make():
        tensors = send(lambda: known() is not None)
        return None if tensors is None else make(tensors)

    sent = coordinator._create_per_worker_resources(send_and_make)
    for remote in sent._values:
        remote._type_spec = spec
    sent._wanted = wanted
    return sent
