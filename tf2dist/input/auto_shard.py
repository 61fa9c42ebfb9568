"""A Dataset divided among workers by TensorFlow's auto-shard policies, where its options ask for one."""

from __future__ import annotations

import tensorflow as tf

from tf2dist.errors import UsageError, first_line

AutoShardPolicy = tf.data.experimental.AutoShardPolicy


def chosen_policy(dataset: tf.data.Dataset) -> tf.data.experimental.AutoShardPolicy | None:
    """The policy that the dataset's options name; None for `AUTO`, which they have if nothing is said."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return None if policy is AutoShardPolicy.AUTO else policy


def shard(
    dataset: tf.data.Dataset, policy: tf.data.experimental.AutoShardPolicy, shards: int, index: int | tf.Tensor
) -> tf.data.Dataset:
    """The elements of one shard, i64[]: of some files, of every n-th element, or of all of it where it is `OFF`.

    As tf.distribute does it (tensorflow/core/grappler/optimizers/data/auto_shard.cc): of files, the dataset is
    changed to read every n-th of them, before anything else is done with what is in them.
    """
    specs = tf.nest.flatten(dataset.element_spec, expand_composites=True)
    if policy is AutoShardPolicy.OFF:
        return dataset
    if policy is AutoShardPolicy.DATA:
        return dataset.shard(shards, index)
    variant = tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_workers=tf.constant(shards, tf.int64),
        index=tf.cast(index, tf.int64),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        auto_shard_policy=policy.value,
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def check_shards(dataset: tf.data.Dataset, policy: tf.data.experimental.AutoShardPolicy, shards: int) -> None:
    """Refuses a dataset of which a shard would be empty, or that has nothing to be sharded by.

    Reads the first element of the last shard, which is the first one to be empty.

    Raises:
      UsageError: so it is.
    """
    asked = f"auto_shard_policy={policy.name} for {shards} workers"
    advice = "give fewer workers, or leave the policy out: then the coordinator reads the data and sends batches"
    try:
        for _ in shard(dataset, policy, shards, shards - 1).take(1):
            return
    except tf.errors.NotFoundError as error:  # no source that it knows, or a file that is missing
        raise UsageError(f"{asked}: the Dataset cannot be sharded so: {first_line(error)}; {advice}") from None
    raise UsageError(f"{asked}: the last one would read nothing; {advice}")
