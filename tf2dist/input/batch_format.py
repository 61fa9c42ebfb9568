"""What a batch is that Python makes: nested arrays, ragged or sparse tensors, with a row for each example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import tensorflow as tf

from tf2dist.errors import TrainingError, UsageError
from tf2dist.input.array_adapter import array_spec, as_x_y_weight
from tf2dist.input.sparse_ragged_rows import as_composite, is_composite, row_count


def standardized(batch: Any, name: str) -> Any:
    """A batch as Keras takes it: a dictionary by itself, or a tuple (x,), (x, y) or (x, y, sample_weight); of arrays.

    Raises:
      TrainingError: it is no batch.
    """
    batch = tuple(batch) if isinstance(batch, list) else batch
    if not isinstance(batch, (tuple, dict)) and hasattr(batch, "shape"):
        batch = (batch,)
    if not isinstance(batch, (tuple, dict)) or (isinstance(batch, tuple) and not 1 <= len(batch) <= 3):
        found = f"a tuple of {len(batch)}" if isinstance(batch, tuple) else f"{type(batch).__name__}"
        raise TrainingError(f"{name}: a batch must be (x,), (x, y), (x, y, sample_weight) or a dict, found {found}")
    parts = as_x_y_weight(batch)
    leaves = tf.nest.map_structure(_as_leaf, parts)
    return leaves[0] if isinstance(batch, dict) else leaves


def _as_leaf(value: Any) -> Any:
    """A NumPy array, or a ragged or sparse tensor."""
    if is_composite(value):
        return as_composite(value)
    if hasattr(value, "detach"):  # of torch, perhaps on another device
        value = value.detach().cpu()
    array = np.asarray(value)
    if not array.ndim:
        raise TrainingError(f"a batch must hold arrays with a row for each example, found the single value {value!r}")
    return array


def spec_of(batch: Any) -> Any:
    """Shapes and dtypes of a batch."""
    return tf.nest.map_structure(_spec_of_leaf, batch)


def _spec_of_leaf(leaf: Any) -> Any:
    return array_spec(leaf) if isinstance(leaf, np.ndarray) else tf.type_spec_from_value(leaf)


def common_spec(specs: Sequence[Any], name: str) -> Any:
    """Returns the most specific spec that fits batches of all these specs; their rows are not counted.

    Raises:
      ValueError: they are not alike but for their sizes.
    """
    try:
        for spec in specs[1:]:
            tf.nest.assert_same_structure(specs[0], spec, check_types=False)
        return tf.nest.map_structure(_merged, *specs)
    except (TypeError, ValueError):
        raise UsageError(
            f"the batches of {name} must be alike but for their sizes, found {in_words(specs[0])} and "
            f"{in_words(specs[-1])}"
        ) from None


def _merged(*specs: Any) -> Any:
    """Merges specs: the number of rows, and sizes that differ, become unknown."""
    first = specs[0]
    if any(type(s) is not type(first) or s.dtype != first.dtype or s.shape.rank != first.shape.rank for s in specs):
        raise TypeError("not alike")
    sizes = [a if all(s.shape[place] == a for s in specs) else None for place, a in enumerate(first.shape)]
    return _reshaped(first, tf.TensorShape([None, *sizes[1:]]))


def _reshaped(spec: Any, shape: tf.TensorShape) -> Any:
    if isinstance(spec, tf.RaggedTensorSpec):
        spec = cast(Any, spec)  # the stubs of TensorFlow lack its attributes
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def as_spec(spec: Any, batch: Any) -> Any:
    """The batch, in the dtypes of a spec.

    Raises:
      TypeError: it is another kind of batch, or has numbers that the spec's dtypes do not hold.
    """
    try:
        tf.nest.assert_same_structure(spec, batch, check_types=False)
    except ValueError as error:
        raise TypeError(str(error)) from None
    return tf.nest.map_structure(_leaf_as_spec, spec, batch)


def _leaf_as_spec(spec: Any, leaf: Any) -> Any:
    found = _spec_of_leaf(leaf)
    if type(found) is not type(spec) or not spec.shape.is_compatible_with(found.shape):
        raise TypeError("not alike")
    leaf = _leaf_as_dtype(spec, leaf)
    if _spec_of_leaf(leaf).dtype != spec.dtype:
        raise TypeError("not alike")
    return leaf


def as_dtypes(spec: Any, batch: Any) -> Any:
    """The batch with its arrays in the dtypes of a spec, where these are of the same kind and hold the values."""
    try:
        tf.nest.assert_same_structure(spec, batch, check_types=False)
    except ValueError:
        return batch
    return tf.nest.map_structure(_leaf_as_dtype, spec, batch)


def _leaf_as_dtype(spec: Any, leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray) or not isinstance(spec, tf.TensorSpec):
        return leaf
    dtype = spec.dtype.as_numpy_dtype
    is_number = np.issubdtype(dtype, np.number)
    if leaf.dtype == dtype or not is_number or not np.can_cast(leaf.dtype, dtype, "same_kind"):
        return leaf
    with np.errstate(over="ignore"):
        cast = leaf.astype(dtype)
    is_whole = np.issubdtype(dtype, np.integer)  # a float rounds, but an integer wraps around
    fits = np.array_equal(cast, leaf) if is_whole else np.array_equal(np.isfinite(cast), np.isfinite(leaf))
    return cast if fits else leaf


def check_rows(batch: tuple[Any, ...]) -> None:
    """Raises a UsageError if a batch, as `standardized`, has no rows, or its parts not the same number of them.

    Parts that consist of several arrays are not compared: those may have different rows, labelled ones and others, say.
    """
    parts = {
        name: row_count(part)
        for name, part in zip(("x", "y", "sample_weight"), batch, strict=False)
        if part is not None and not tf.nest.is_nested(part)
    }
    if len({*parts.values()}) > 1:
        found = ", ".join(f"{name} of {rows}" for name, rows in parts.items())
        raise UsageError(f"the arrays of a batch must have the same number of rows, found {found}")
    if not any(row_count(leaf) for leaf in tf.nest.flatten(batch) if leaf is not None):
        raise UsageError("a batch must have rows, and this one has none")


def in_words(spec: Any) -> str:
    """Shapes and dtypes in short, such as `(float32[None, 12], int64[None])`."""
    if isinstance(spec, tuple):
        return "(" + ", ".join(map(in_words, spec)) + ("," if len(spec) == 1 else "") + ")"
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{name!r}: {in_words(value)}" for name, value in spec.items()) + "}"
    return f"{spec.dtype.name}[{', '.join(map(str, spec.shape))}]"
