"""The expensive part of an input pipeline, made by data workers: a tf.data service as one call."""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingTypeArgument=false

from __future__ import annotations

import logging
import secrets
from typing import Any, cast

import tensorflow as tf

from tf2dist.errors import UsageError, first_line
from tf2dist.input.dataset_graph import BY_PLACE, DatasetGraph, mark_served
from tf2dist.runtime import session
from tf2dist.runtime.data_service import RunningService, service_in_this_process

# What may be done in several workers, each with a part of the source's elements, and gives all together what one gives.
# TensorFlow divides a source, and runs the rest in each worker: `take(6)` takes six in each, `zip` makes other pairs.
_SOURCES = ("FixedLengthRecord", "Range", "SparseTensorSlice", "Tensor", "TensorSlice", "TextLine", "TFRecord")
_ELEMENT_WISE = (
    "AssertCardinality", "ExperimentalIgnoreErrors", "ExperimentalUnbatch", "Filter", "FlatMap", "IgnoreErrors",
    "Interleave", "LegacyParallelInterleave", "Map", "Options", "ParallelFilter", "ParallelInterleave",
    "ParallelMap", "Prefetch", "Shuffle", "Unbatch",
)  # fmt: skip
_SAFE = {*_SOURCES, *_ELEMENT_WISE}
# Elements travel in packs: a message for each costs 0.2 ms, whatever its size, and a pack of 16 small ones as much.
_PACK, _PACK_BYTES = 16, 1 << 20
_TEXT_BYTES = 1 << 12  # that a string may have, of which nothing says how long it is
_log = logging.getLogger("tf2dist")


class DataService:
    """Runs a part of an input pipeline on data workers, so that the process which reads it does the rest only.

    ```python
    service = tf2dist.DataService()
    dataset = files.shuffle(10_000).map(decode)    # on data workers
    dataset = service.distribute(dataset).batch(64)  # where the data is read
    tf2dist.fit(model, dataset)
    ```

    A job that was started with `--data_workers=N` has N data workers, processes of their own, on hosts of their own if
    you like. Any other process starts tf.data service workers in itself. So does, in each job, a pipeline that calls
    Python (`from_generator`, `numpy_function`, `py_function`): no other process has its functions.

    Each element comes once a pass, and each pass is a new one: a `shuffle` without a seed draws another order. With one
    worker elements come in the order of the Dataset, with several in any order. Those that a worker had in hand when it
    was lost are missing in that pass. See docs/data.md.

    Source: `tf.data.experimental.service` (Audibert et al., "tf.data service: A case for disaggregating ML input data
    processing", 2023), with dynamic sharding.

    Args:
      workers: how many workers to start in this process, where the job has no data workers.

    Raises:
      UsageError: `workers` is no number from 1 on.
    """

    def __init__(self, workers: int = 1) -> None:
        if type(workers) is not int or workers < 1:
            raise UsageError(f"workers={workers!r} must be a whole number from 1 on")
        self._workers = workers

    def distribute(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Has data workers make the elements of a Dataset.

        Args:
          dataset: of examples that are not batched yet, without seeds: they would draw the same numbers in each pass.
            With data workers of the job, or several in this process, the operations on its elements may be `map`,
            `filter`, `flat_map`, `interleave`, `shuffle`, `prefetch`, `unbatch` and `ignore_errors`: each worker has a
            part of the elements of the source, and what depends on others of them (`batch`, `repeat`) comes after. What
            goes by their order (`zip`, `take`, `skip`, `cache`) does not come after either.

        Returns:
          A Dataset of the same elements, of the same shapes and dtypes. It is read in this process, and may be changed
          like any other.

        Raises:
          UsageError: it is no Dataset, cannot be made in another place, or in several.
        """
        if not isinstance(cast(object, dataset), tf.data.Dataset):
            raise UsageError(f"a data service distributes a tf.data.Dataset, found {type(dataset).__name__}")
        if not tf.executing_eagerly():
            raise UsageError("DataService.distribute is called in a function that TensorFlow traces; call it outside")
        if any(isinstance(spec, tf.data.DatasetSpec) for spec in tf.nest.flatten(dataset.element_spec)):
            raise UsageError(
                "the elements of this Dataset are Datasets (as of window), which do not travel; flatten them first"
            )
        try:
            graph = DatasetGraph(dataset)
        except (tf.errors.OpError, ValueError) as error:
            raise UsageError(f"this Dataset cannot be made by data workers: {first_line(error)}") from None
        if graph.reads_service:
            raise UsageError("this Dataset is made by a data service already; distribute the whole pipeline once")
        if changes := graph.same_each_pass:
            raise UsageError(
                f"the Dataset has {changes}, and data workers make it anew for each pass, in which it would be the "
                "same: do that after DataService.distribute, or with random numbers of tf.random and no seed"
            )
        service = self._service_for(graph)
        steps = int(dataset.cardinality())
        if service.workers > 1 or service.of_job:
            _check_divisible(graph)
            if graph.asserts_cardinality:
                variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.without_assertions())
                dataset = tf.data.experimental.from_variant(variant, dataset.element_spec)
        return _distributed(dataset, steps, service, may_wait=graph.calls_python)

    def _service_for(self, graph: DatasetGraph) -> RunningService:
        of_job = session.current().data_service
        if of_job is None:
            return service_in_this_process(self._workers)
        if graph.calls_python:
            _log.info(
                "tf2dist: a Dataset that calls Python is made in this process, and not by the job's %d data workers, "
                "which do not have its functions",
                of_job.workers,
            )
            return service_in_this_process(1)
        return of_job


def _check_divisible(graph: DatasetGraph) -> None:
    """Raises UsageError unless several workers make together what one makes, also if one of them begins once more."""
    operations = [operation.partition("Dataset")[0] for operation in graph.operations]
    unsafe = [name for name in operations if name not in _SAFE]
    if unsafe:
        how = "without a DataService, since" if unsafe[0] in BY_PLACE else "after DataService.distribute, unless"
        raise UsageError(
            f"the Dataset has an operation {unsafe[0]}, which each data worker would do with its own part of the "
            f"source; do it {how} it goes by the order of elements"
        )
    if sum(name in _SOURCES for name in operations) > 1:
        raise UsageError(
            "the Dataset has several sources, and data workers would divide each by itself; do without a DataService, "
            "or distribute each"
        )


def _distributed(dataset: tf.data.Dataset, steps: int, service: RunningService, *, may_wait: bool) -> tf.data.Dataset:
    """The Dataset, made by the service.

    Args:
      steps: its cardinality.
      may_wait: each element may wait for what becomes of the one before, so that it travels alone.
    """
    pack = 1 if may_wait else _pack_size(dataset.element_spec)
    packed = dataset.batch(pack) if pack > 1 else dataset
    name = f"tf2dist-{secrets.token_hex(8)}"  # else a later Dataset of the same graph would be this one
    server = tf.data.experimental.service
    # Compressing takes longer than sending; but an element that is a single variant is taken for a compressed one.
    variants = any(type(each) is not tf.TensorSpec for each in tf.nest.flatten(dataset.element_spec))
    compression = "AUTO" if variants else None
    server.register_dataset(service.target, packed, compression=compression, dataset_id=name)
    alone = service.workers == 1 and not service.of_job  # then nothing is divided, which not every source can be
    policy = server.ShardingPolicy.OFF if alone else server.ShardingPolicy.DYNAMIC
    served = server.from_dataset_id(policy, service.target, name, element_spec=packed.element_spec)
    return mark_served(served.unbatch() if pack > 1 else served, steps, service.workers, lossy=service.of_job)


def _pack_size(spec: Any) -> int:
    """How many elements travel together; one by one where they have unlike shapes, or are large."""
    nbytes = 0
    for each in tf.nest.flatten(spec):
        if type(each) is not tf.TensorSpec or not each.shape.is_fully_defined():
            return 1
        nbytes += each.shape.num_elements() * (_TEXT_BYTES if each.dtype == tf.string else each.dtype.size)
    return max(1, min(_PACK, _PACK_BYTES // max(1, nbytes)))
