"""Whole sparse matrices, and sparse and ragged tensors, as a Dataset of batches of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf2dist.errors import UsageError
from tf2dist.input.array_adapter import rows_in_a_batch


def _is_sparse_matrix(value: Any) -> bool:
    """Whether it is one of SciPy, whose iterator yields its rows."""
    return hasattr(value, "tocoo")


def has_tensor_rows(data: Any) -> bool:
    """Whether any part of nested data is a sparse matrix, or a sparse or ragged tensor."""
    return any(is_composite(leaf) for leaf in tf.nest.flatten(data))


def is_composite(leaf: Any) -> bool:
    """Whether it is a sparse matrix, or a sparse or ragged tensor."""
    return isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)) or _is_sparse_matrix(leaf)


def as_composite(value: Any) -> tf.SparseTensor | tf.RaggedTensor:
    """Returns a sparse matrix as a sparse tensor with its rows in order, and a tensor as it is."""
    if not _is_sparse_matrix(value):
        return value
    matrix = value.tocsr().sorted_indices().tocoo()
    return tf.SparseTensor(np.stack([matrix.row, matrix.col], 1).astype(np.int64), matrix.data, matrix.shape)


def row_count(data: Any) -> int:
    """The rows of the first part of nested arrays and tensors."""
    first = next(part for part in tf.nest.flatten(data) if part is not None)
    return int(first.shape[0]) if hasattr(first, "shape") else len(first)


def cut_rows(value: Any, start: int, end: int) -> Any:
    """Rows `start` to `end` of an array, a sparse matrix, or a sparse or ragged tensor."""
    if isinstance(value, tf.SparseTensor):
        low = tf.concat([[start], tf.zeros(value.shape.rank - 1, tf.int64)], 0)
        return tf.sparse.slice(value, low, tf.concat([[end - start], value.dense_shape[1:]], 0))
    if _is_sparse_matrix(value):
        value = value.tocsr()
    return value.iloc[start:end] if hasattr(value, "iloc") else value[start:end]


def batches_of_rows(data: Any, batch_size: int, *, shuffle: bool, seed: int) -> tf.data.Dataset:
    """Batches of the rows of nested arrays and tensors.

    Args:
      data: each part has the same number of rows.
      batch_size: rows in a batch; the last one may have fewer.
      shuffle: a new order for each pass.
      seed: of these orders.

    Raises:
      UsageError: the numbers of rows differ.
    """
    parts = tf.nest.map_structure(lambda leaf: as_composite(leaf) if is_composite(leaf) else leaf, data)
    rows = [row_count(part) for part in tf.nest.flatten(parts)]
    if len(set(rows)) > 1:
        raise UsageError(f"arrays must have the same number of rows, found {' and '.join(map(str, rows))}")
    batch_size = rows_in_a_batch(batch_size)
    dataset = tf.data.Dataset.from_tensor_slices(parts)
    if shuffle:
        dataset = dataset.shuffle(rows[0], seed=seed)
    return dataset.batch(batch_size)
