"""Keras layers for models that are trained on several machines."""

from tf2dist.sharding import ShardedEmbedding

__all__ = ["ShardedEmbedding"]
