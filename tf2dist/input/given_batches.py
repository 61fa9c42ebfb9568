"""Global batches that a program gives one by one as data."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf2dist.input.batch_format import as_spec
from tf2dist.input.batch_slicing import ReplicaSlices
from tf2dist.input.dataset_adapter import cut_batches, slices_in_turn
from tf2dist.input.without_autotune import without_autotune

_LOOK_SECONDS = 1.0  # after so many, a thread that reads ahead looks whether the program has ended


class GivenBatches:
    """The batches that `give` was called with, in order. A `DataAdapter`.

    Peers of a multi-worker job are each given all of them, and keep their slices of each batch.

    Args:
      spec: shapes and dtypes of a batch.
      maps: functions applied to each batch.
    """

    element_per_replica = False
    needs_this_process = True
    needs_one_reader = True
    steps = None
    announced_steps = None

    def __init__(self, spec: Any, maps: tuple[Callable[..., Any], ...] = ()):
        self._spec, self._maps = spec, maps
        self._given: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._element_spec = self._dataset().element_spec if maps else spec

    def divided(self, workers: int) -> GivenBatches:
        """See `DataAdapter`. Workers are sent whole batches."""
        return self

    def give(self, batch: Any) -> None:
        """Adds a batch.

        Args:
          batch: nested arrays.

        Raises:
          TypeError: it is not of the spec.
        """
        self._given.put(as_spec(self._spec, batch))

    def element_spec(self) -> Any:
        """See `DataAdapter`."""
        return self._element_spec

    def map(self, function: Callable[..., Any]) -> GivenBatches:
        """See `DataAdapter`."""
        return GivenBatches(self._spec, (*self._maps, function))

    def remote_arrays(self) -> Any:
        """Nothing travels."""
        return ()

    def local_tensors(self) -> None:
        """Nothing: this process has the batches."""

    def shared_tensors(self, choose_seed: Callable[[], int]) -> None:
        """Nothing: so does each of them."""

    def by_number(self) -> None:
        """None: batches come in their order."""

    def _batches(self) -> Iterator[Any]:
        main = threading.main_thread()
        while main.is_alive():  # or the program would not end
            try:
                batch = self._given.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if batch is None:
                return
            yield batch

    def _dataset(self) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_generator(self._batches, output_signature=self._spec)
        for function in self._maps:
            dataset = dataset.map(function)
        return without_autotune(dataset)

    def training_batches(
        self, tensors: Any, slices: ReplicaSlices, start: int, worker: Any = 0, workers: int = 1, *, stop: Any = None
    ) -> tf.data.Dataset:
        """See `DataAdapter`."""
        return cut_batches(self._dataset().shard(workers, worker), slices, parallel=False)

    def training_slices(self, tensors: Any, total: int, start: int, worker: Any, workers: int) -> tf.data.Dataset:
        """See `DataAdapter`."""
        return slices_in_turn(self._dataset(), total).shard(workers, worker)

    def read(self, batches: tf.data.Dataset, first: int = 0) -> Iterator[Any]:
        """See `DataAdapter`. They are there."""
        return iter(batches)

    def begin_epoch(self) -> None:
        """Nothing: where one begins only the program knows."""

    def end_epoch(self) -> None:
        """Nothing, likewise."""

    def allow(self, batches: int) -> None:
        """Nothing: what is given is there."""

    def raise_failure(self) -> None:
        """Nothing: it was checked when it was given."""

    def close(self) -> None:
        """See `DataAdapter`."""
        self._given.put(None)
