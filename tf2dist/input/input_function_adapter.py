"""A function of a `tf.distribute.InputContext` as data."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from tf2dist.compat.autograph import converted
from tf2dist.errors import UsageError
from tf2dist.input.batch_slicing import ReplicaSlices
from tf2dist.input.data_adapter import ReadByTensorFlow
from tf2dist.input.dataset_adapter import of_element
from tf2dist.input.without_autotune import without_autotune


class InputFunctionAdapter(ReadByTensorFlow):
    """What `function(tf.distribute.InputContext)` returns: a Dataset of one replica's batches. A `DataAdapter`.

    The function is called once in each process that trains, or on each worker, and shards its data itself:
    `num_input_pipelines` and `input_pipeline_id` tell it which part to read (under a parameter server strategy
    the id is a tensor, which `Dataset.shard` takes). For each update every replica takes a batch of its own, and
    their means count equally.

    Args:
      function: as `tf.distribute.Strategy.distribute_datasets_from_function` takes it.
      maps: functions applied to each batch.
    """

    steps = announced_steps = None  # only the user knows how much of it is an epoch
    element_per_replica = True

    def __init__(self, function: Callable, maps: tuple[Callable, ...] = ()):
        self._function = function
        self._in_graph = converted(function)  # of a worker, where the number of the pipeline is a tensor
        self._maps = maps

    def map(self, function: Callable) -> InputFunctionAdapter:
        """See `DataAdapter`."""
        return InputFunctionAdapter(self._function, (*self._maps, function))

    def remote_arrays(self):
        """Nothing has to travel: the function is called where its batches are used."""
        return ()

    local_tensors = remote_arrays

    def shared_tensors(self, choose_seed: Callable[[], int]):
        """Nothing: each process reads a part of its own."""
        return self.local_tensors()

    @functools.cached_property
    def _element_spec(self):
        return self._call(0, 1, 1).element_spec

    def element_spec(self):
        """See `DataAdapter`."""
        return self._element_spec

    def _call(self, pipeline, pipelines: int, replicas: int) -> tf.data.Dataset:
        context = tf.distribute.InputContext(pipelines, pipeline, replicas)
        dataset = (self._function if tf.executing_eagerly() else self._in_graph)(context)
        if not isinstance(dataset, tf.data.Dataset):
            raise UsageError(f"the data function must return a tf.data.Dataset, found {type(dataset).__name__}")
        for function in self._maps:
            dataset = dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)
        return without_autotune(dataset)

    def by_number(self) -> None:
        """None: each worker reads what the function has made there."""

    def training_batches(
        self, tensors, slices: ReplicaSlices, start: int, worker=0, workers: int = 1, *, stop: int | None = None
    ) -> tf.data.Dataset:
        """See `DataAdapter`."""
        each = slices.total // slices.count  # pipelines of what runs in lockstep: of one worker, or of all peers
        pipelines, pipeline = workers * each, worker * each + slices.first // slices.count
        dataset = self._call(pipeline, pipelines, slices.total).repeat()
        dataset = dataset.skip(start * slices.count // workers) if start else dataset
        if slices.single:
            return dataset.prefetch(tf.data.AUTOTUNE)
        weight = 1 / slices.total
        return dataset.map(of_element(dataset, lambda batch: (batch, weight))).prefetch(tf.data.AUTOTUNE)

    def training_slices(self, tensors, total: int, start: int, worker, workers: int) -> tf.data.Dataset:
        """See `DataAdapter`. Each worker reads batches of its own."""
        dataset = self._call(worker, workers, total).repeat()
        dataset = dataset.skip(start * total // workers) if start else dataset
        return dataset.map(of_element(dataset, lambda batch: (batch, 1 / total))).prefetch(tf.data.AUTOTUNE)
