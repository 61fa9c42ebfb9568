"""Keras layers for models that are trained on several machines."""

from tf2dist.layers.sharded_embedding import ShardedEmbedding

__all__ = ["ShardedEmbedding"]
