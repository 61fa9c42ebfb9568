"""The workers of a coordinator: scheduling functions on them, and iterators that live there."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.cluster.heartbeat import GRACE
from tf2dist.compat.per_worker_datasets import open_iterators, send_tensors
from tf2dist.compat.scheduled_functions import (
    abandon,
    announce_end,
    cancel_scheduled,
    coordinator_of,
    has_ended,
    idle_workers,
    interrupted_workers,
)
from tf2dist.compat.strategy_internals import LOST_TASK_ERRORS, worker_count
from tf2dist.errors import TrainingError
from tf2dist.input.batch_slicing import ReplicaSlices
from tf2dist.input.without_rewriting import without_rewriting
from tf2dist.parameter_server.tensor_pieces import ArrayPieces, copy_to_device
from tf2dist.runtime import devices, session

_log = logging.getLogger("tf2dist")
_LOOK_SECONDS = 0.05  # between two looks for functions whose end was not announced
_CANCEL_SECONDS = GRACE + 30.0  # a worker that does not answer counts as lost before
_SENT_BYTES = 16 << 20  # on their way to all workers together; about six copies of them are in memory
_LEAST_PIECE_BYTES = 1 << 20


class TraceAgain(Exception):
    """Raised while a scheduled function is traced: what it reads is another now, and it is to be traced once more."""


class WorkerPool:
    """The workers that a parameter server strategy leads, through TensorFlow's `ClusterCoordinator`.

    Attributes:
      strategy: the strategy.
      count: how many workers the cluster has, lost ones included.
      slices: the replicas of one worker, which cut its batches between them.
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy):
        self.strategy = strategy
        self.count = worker_count(strategy)
        self.slices = ReplicaSlices(count=strategy.num_replicas_in_sync, total=strategy.num_replicas_in_sync)
        self._ends = threading.Condition()  # of scheduled functions
        self._keeps_busy = False
        self._coordinator = coordinator_of(strategy)

    def schedule(self, function, args: tuple) -> Any:
        """Schedules a `tf.function` on the next free worker; returns its remote value."""
        self._free_workers()
        busy = weakref.WeakMethod(self._busy_workers)  # the session must not keep the workers' data
        session.current().progress.busy_workers = lambda: method() if (method := busy()) else []
        remote = None
        while remote is None:  # it reads less each time
            with contextlib.suppress(TraceAgain):
                remote = self._coordinator.schedule(function, args=args)
        announce_end(remote, self._tell)
        return remote

    def _busy_workers(self) -> list[str]:
        """The names of workers that are not lost, and have not returned what they run."""
        busy = set(range(self.count)) - idle_workers(self._coordinator) - session.current().unused_workers()
        return [f"worker {index}" for index in sorted(busy)]

    def has_idle_worker(self) -> bool:
        """Whether a worker that is not lost is idle."""
        return bool(idle_workers(self._coordinator) - session.current().unused_workers())

    def interruptions(self) -> list[int]:
        """Of each function that is run again, since its worker or the connection to it was lost, that worker."""
        return interrupted_workers(self._coordinator)

    def log_unread_data(self) -> None:
        """Logs which part of data that workers divide among them, by their numbers, is read by none of them now."""
        if missing := sorted(session.current().unused_workers()):
            names = ", ".join(f"worker {index}" for index in missing)
            _log.warning(
                "tf2dist: %s of %d workers read this data, each its own part of it; not that of %s, until it is there",
                self.count - len(missing),
                self.count,
                names,
            )

    def keep_busy(self, free: Callable[[], object]) -> None:
        """Notes that all workers are to run functions of this pool that end when `free`, a method, is called.

        That is called before anything is scheduled on them for another model. (Each model has a pool of its own.)
        """
        session.current().free_workers()
        method = weakref.WeakMethod(free)  # the session must not keep the model
        self._keeps_busy = True
        session.current().free_workers = lambda: call() if (call := method()) else None

    def release(self) -> None:
        """Notes that what kept the workers busy ends."""
        self._keeps_busy = False

    def _free_workers(self) -> None:
        """Ends what another pool keeps the workers busy with."""
        if not self._keeps_busy:
            session.current().free_workers()

    def _tell(self) -> None:
        with self._ends:
            self._ends.notify_all()

    def first_ended(self, remotes: Sequence[Any], limit: float = math.inf) -> int | None:
        """Waits until a scheduled function is over, however it ended; returns its place among `remotes`.

        None if none is over when this process has waited for `limit` seconds. (The time for which the whole machine
        stood still is not counted.)
        """
        waits = 0
        with self._ends:
            while True:
                for place, remote in enumerate(remotes):
                    if has_ended(remote):
                        return place
                if waits * _LOOK_SECONDS >= limit:
                    return None
                waits += not self._ends.wait(_LOOK_SECONDS)

    def abandon(self, remotes: Sequence[Any]) -> None:
        """Stops waiting for scheduled functions whose worker is stuck; their errors are ignored."""
        for remote in remotes:
            abandon(self._coordinator, remote)

    def fetch(self, remote) -> list[np.ndarray] | None:
        """Waits for a scheduled function; None if it ended and its result was lost with its worker.

        An error ends all that is scheduled.

        Raises:
          tf.errors.OpError: the function failed, or a server is gone.
        """
        try:
            fetched = remote.fetch()
        except LOST_TASK_ERRORS:
            self.raise_failure()  # if it was more than this fetch
            return None
        except BaseException:
            # The coordinator would give the error to whatever is scheduled next, once more.
            with contextlib.suppress(Exception):
                self.cancel()
            raise
        # If the worker's thread fails to copy a result, one that waits for it gets none, and no error either
        # (RemoteValueImpl.get in tensorflow/python/distribute/coordinator/values.py).
        return None if fetched is None else [np.asarray(t) for t in tf.nest.flatten(fetched)]

    def raise_failure(self) -> None:
        """Raises the error of a scheduled function that has failed, if one has."""
        self._coordinator.done()

    def cancel(self) -> None:
        """Cancels everything that is scheduled, after an error, and waits until no worker runs any of it.

        Raises:
          TrainingError: workers are still at it after 90 s.
        """
        running = cancel_scheduled(self._coordinator, _CANCEL_SECONDS)
        if running:
            raise TrainingError(
                f"workers run {running} functions of a call that has failed, and have not ended them in "
                f"{_CANCEL_SECONDS:.0f} s"
            )

    def open_iterators(
        self, make_dataset: Callable[[Any], tf.data.Dataset], arrays: Any = (), *, on_host: bool = False
    ) -> Any:
        """An iterator on each worker over the dataset that `make_dataset` makes there, as an argument of functions.

        Its elements have a value for each replica of the worker; or, `on_host`, they stay in the host's memory, for
        what is too much for a GPU's.

        Args:
          make_dataset: `make_dataset(tensors)`, called once, in a graph.
          arrays: nested NumPy arrays, sent to all workers at once, and again to one that comes back after it was lost;
            `tensors` are what the worker has got. They must not change as long as the iterators are used.
        """
        self._free_workers()
        pieces = self._pieces(arrays)

        @tf.function(input_signature=[array.spec for array in pieces], autograph=False)
        def datasets(*received):
            tensors = tf.nest.pack_sequence_as(arrays, received)
            if on_host or not devices.on_accelerators(self.strategy):
                # A worker's CPU reads what it has made in its memory as it is. tf.distribute's iterators would add
                # two of their own, with tuning threads (see `without_autotune`).
                return make_dataset(tensors)
            return self.strategy.distribute_datasets_from_function(lambda context: make_dataset(tensors))

        return open_iterators(
            self._coordinator, datasets.get_concrete_function(), lambda wanted: copy_to_device(pieces, wanted)
        )

    def send(self, arrays: Any) -> Any:
        """Tensors of nested NumPy arrays on each worker, as an argument of functions; sent as `open_iterators` does.

        A function that takes them is traced once for all numbers of rows.
        """
        self._free_workers()
        pieces = self._pieces(arrays)
        specs = [tf.TensorSpec([None, *p.spec.shape[1:]] if p.spec.shape.rank else [], p.spec.dtype) for p in pieces]
        return send_tensors(
            self._coordinator,
            lambda wanted: copy_to_device(pieces, wanted),
            lambda tensors: tf.nest.pack_sequence_as(arrays, tensors),
            tf.nest.pack_sequence_as(arrays, specs),
        )

    def _pieces(self, arrays: Any) -> list[ArrayPieces]:
        nbytes = max(_LEAST_PIECE_BYTES, _SENT_BYTES // self.count)
        return [ArrayPieces(array, nbytes) for array in tf.nest.flatten(arrays)]

    def first_replica(self, element) -> Any:
        """Returns the first replica's part of a per-replica element or result."""
        return tf.nest.map_structure(lambda t: self.strategy.experimental_local_results(t)[0], element)


def this_worker() -> tf.Tensor:
    """The index i64[] of the worker that runs this. In a graph."""
    return tf.cast(tf.distribute.coordinator.experimental_get_current_worker_index(), tf.int64)


def repeat_element(element) -> tf.data.Dataset:
    """The same element, endlessly."""
    return without_rewriting(tf.data.Dataset.from_tensors(element).repeat())
