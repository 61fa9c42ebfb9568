"""Datasets of batches, and functions that make them, as feeds."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf2dist.parts import Part, cut
from tf2dist.untuned import untuned


class Batches:
    """A `tf.data.Dataset` of global batches.

    Its order is its own: give `shuffle` a seed where several processes read it together, since each peer of a
    multi-worker job reads the whole dataset and keeps its part of each batch. Asynchronous workers read it whole
    too and take every n-th batch, so their batches are disjoint when the order has a seed.

    Args:
      steps: batches to use of each pass; all of them if not given.
    """

    def __init__(self, dataset: tf.data.Dataset, steps: int | None = None):
        self.dataset = untuned(dataset)
        self._steps = steps

    @functools.cached_property
    def steps(self) -> int | None:
        """Batches of one pass; None if endless. An unknown number is counted by reading the dataset once."""
        found = int(self.dataset.cardinality())
        if self._steps is not None:
            return min(self._steps, found) if found >= 0 else self._steps
        if found == tf.data.UNKNOWN_CARDINALITY:
            found = int(self.dataset.reduce(np.int64(0), lambda count, *_: count + 1))
        return None if found == tf.data.INFINITE_CARDINALITY else found

    def mapped(self, function: Callable) -> Batches:
        """The same batches, with `function` applied to each."""
        return Batches(self.dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE), self._steps)

    def signature(self):
        """Equal for feeds whose streams are the same functions of their tensors."""
        return "batches", str(self.dataset.element_spec)

    def tensors(self):
        """The dataset's graph, serialized: string[]. It is rebuilt on the worker that reads it."""
        variant = tf.data.experimental.to_variant(self.dataset)
        try:
            return tf.raw_ops.DatasetToGraphV2(
                input_dataset=variant, external_state_policy=2, strip_device_assignment=True
            )
        except tf.errors.FailedPreconditionError as error:
            raise ValueError(
                "the dataset calls Python (from_generator, numpy_function or py_function), which cannot run on a "
                "remote worker; use TensorFlow operations, arrays or files"
            ) from error

    def spec(self):
        """Shapes and dtypes of a batch."""
        return self.dataset.element_spec

    def local(self):
        """Nothing: in this process the dataset is read as it is."""

    def _open(self, tensors):
        if tensors is None:
            return self.dataset
        return tf.data.experimental.from_variant(
            tf.raw_ops.DatasetFromGraph(graph_def=tensors), self.dataset.element_spec
        )

    def stream(self, tensors, part: Part, start: int, worker=0, workers: int = 1) -> tf.data.Dataset:
        """Endless batches, as `Examples.stream`; the batches before `start` are read and dropped."""
        dataset = self._endless(tensors, start)
        dataset = dataset.shard(workers, worker) if workers > 1 else dataset
        return _split(dataset, part).prefetch(tf.data.AUTOTUNE)

    def _endless(self, tensors, start: int) -> tf.data.Dataset:
        dataset = self._open(tensors)
        dataset = (dataset if self._steps is None else dataset.take(self._steps)).repeat()
        return dataset.skip(start) if start else dataset

    def pieces(self, tensors, total: int, start: int, worker, workers: int) -> tf.data.Dataset:
        """As `Examples.pieces`."""
        dataset = self._endless(tensors, start)

        def cuts(*batch):
            ranks = tf.data.Dataset.range(total)
            return ranks.map(lambda rank: _cut(packed(batch), rank, total))

        return dataset.flat_map(cuts).shard(workers, worker).prefetch(tf.data.AUTOTUNE)

    def one_pass(self, tensors, part: Part, steps=None, shard=0, shards=1) -> tf.data.Dataset:
        """Every example of the first `steps` batches once; of several shards, the batches of one."""
        if steps is None:
            steps = self.steps or 0
        dataset = self._open(tensors).take(steps)
        return _split(dataset.shard(shards, shard), part)


class FromFunction:
    """What `function(tf.distribute.InputContext)` returns: a Dataset of one replica's batches, for training.

    The function is called once in each process that trains, or on each worker, and shards for itself:
    `num_input_pipelines` and `input_pipeline_id` say for which one it is called (under a parameter server strategy
    the id is a tensor, which `Dataset.shard` takes). Every replica takes a batch of its own for each update, and
    their means count equally.
    """

    steps = None  # how much of it is an epoch, only the user knows

    def __init__(self, function: Callable, maps: tuple[Callable, ...] = ()):
        self._function = function
        self._maps = maps

    def mapped(self, function: Callable) -> FromFunction:
        """The same batches, with `function` applied to each."""
        return FromFunction(self._function, (*self._maps, function))

    def tensors(self):
        """Nothing has to travel: the function is called where its batches are used."""
        return ()

    local = tensors

    @functools.cached_property
    def _spec(self):
        return self._make(0, 1, 1).element_spec

    def spec(self):
        """Shapes and dtypes of a batch."""
        return self._spec

    def _make(self, pipeline, pipelines: int, replicas: int) -> tf.data.Dataset:
        context = tf.distribute.InputContext(pipelines, pipeline, replicas)
        dataset = self._function(context)
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(f"the data function must return a tf.data.Dataset, found {type(dataset).__name__}")
        for function in self._maps:
            dataset = dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)
        return untuned(dataset)

    def stream(self, tensors, part: Part, start: int, worker=0, workers: int = 1) -> tf.data.Dataset:
        """As `Examples.stream`, but `{"each": (batch, share)}`, an element for each replica."""
        pipelines = workers if part.whole else part.total // part.count
        pipeline = worker if part.whole else part.first // part.count
        dataset = self._make(pipeline, pipelines, part.total).repeat()
        dataset = dataset.skip(start * part.count // workers) if start else dataset
        if part.whole:
            return dataset.prefetch(tf.data.AUTOTUNE)
        share = 1 / part.total
        return dataset.map(lambda *batch: {"each": (packed(batch), share)}).prefetch(tf.data.AUTOTUNE)

    def pieces(self, tensors, total: int, start: int, worker, workers: int) -> tf.data.Dataset:
        """As `Examples.pieces`; each worker's batches are its own."""
        dataset = self._make(worker, workers, total).repeat()
        dataset = dataset.skip(start * total // workers) if start else dataset
        return dataset.map(lambda *batch: (packed(batch), 1 / total)).prefetch(tf.data.AUTOTUNE)


def _cut(batch, rank, total: int):
    low, high, share = cut(tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0], rank, total)
    return tf.nest.map_structure(lambda t: t[low:high], batch), share


def _split(dataset: tf.data.Dataset, part: Part) -> tf.data.Dataset:
    if part.whole:
        return dataset
    return dataset.map(
        lambda *batch: part.of(lambda rank: _cut(packed(batch), rank, part.total)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def packed(batch: tuple):
    """Undoes the unpacking that `Dataset.map` does to tuples, for elements that are no tuple."""
    return batch[0] if len(batch) == 1 else batch
