"""A Dataset divided among workers by TensorFlow's auto-shard policies, where its options name one."""

from __future__ import annotations

import tensorflow as tf

from tf2dist.errors import UsageError, first_line

AutoShardPolicy = tf.data.experimental.AutoShardPolicy


def chosen_policy(dataset: tf.data.Dataset) -> tf.data.experimental.AutoShardPolicy | None:
    """The policy that the dataset's options name; None for `AUTO`, which they have if nothing is said.

    Raises:
      UsageError: it is `HINT`; TensorFlow can neither count nor read a dataset with a hint before it is divided.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy is AutoShardPolicy.HINT:
        raise UsageError(
            "auto_shard_policy=HINT is not supported; give a function of tf.distribute.InputContext that calls "
            "Dataset.shard(context.num_input_pipelines, context.input_pipeline_id) where the hint is"
        )
    return None if policy is AutoShardPolicy.AUTO else policy


def shard_files(dataset: tf.data.Dataset, shards: int, index: int | tf.Tensor) -> tf.data.Dataset:
    """What is in every n-th file, from that with the index, i64[], on: the policy `FILE`.

    As tf.distribute does it (tensorflow/core/grappler/optimizers/data/auto_shard.cc): the dataset is changed
    to read every n-th of them, before anything is done with what is in them.
    """
    specs = tf.nest.flatten(dataset.element_spec, expand_composites=True)
    variant = tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_workers=tf.constant(shards, tf.int64),
        index=tf.cast(index, tf.int64),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        auto_shard_policy=AutoShardPolicy.FILE.value,
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def check_files(dataset: tf.data.Dataset, shards: int) -> None:
    """Refuses a dataset with fewer files than shards, or of which TensorFlow does not know the files.

    Reads the first element of the last shard, which is the first one without a file.

    Raises:
      UsageError: so it is.
    """
    asked = f"auto_shard_policy=FILE for {shards} workers"
    advice = "give fewer workers, or leave the policy out: then the coordinator reads the data and sends batches"
    try:
        for _ in shard_files(dataset, shards, shards - 1).take(1):
            return
    except tf.errors.NotFoundError as error:  # no source that it knows, or a file that is missing
        raise UsageError(f"{asked}: the Dataset cannot be sharded so: {first_line(error)}; {advice}") from None
    raise UsageError(f"{asked}: the last one would read nothing; {advice}")
