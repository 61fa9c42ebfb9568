"""Chooses the adapter for what a user gives as data."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist.errors import UsageError
from tf2dist.input.array_adapter import DEFAULT_BATCH_SIZE, Examples, as_x_y_weight, whole_number
from tf2dist.input.class_weight import ClassWeight
from tf2dist.input.data_adapter import FiniteDataAdapter
from tf2dist.input.dataset_adapter import DatasetAdapter
from tf2dist.input.input_function_adapter import InputFunctionAdapter
from tf2dist.input.input_progress import InputProgress
from tf2dist.input.python_adapter import PythonAdapter
from tf2dist.input.python_source import PythonSource, is_python_source
from tf2dist.input.sparse_ragged_rows import as_composite, batches_of_rows, has_tensor_rows, is_composite, row_count

_log = logging.getLogger("tf2dist")
_ADAPTERS = (Examples, DatasetAdapter, InputFunctionAdapter, PythonAdapter)


def make_data_adapter(
    data: Any,
    *,
    batch_size: int | None = None,
    shuffle=False,
    seed: int = 0,
    steps: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    progress: InputProgress | None = None,
) -> Examples | DatasetAdapter | InputFunctionAdapter | PythonAdapter:
    """Adapts anything that `fit` takes as training data.

    Args:
      data: arrays, a Dataset of global batches, a `PyDataset` or whatever else Python gets such from, a function of an
        InputContext, or an adapter.
      batch_size: for arrays; ignored with a warning for what is batched already, as Keras ignores it.
      shuffle, seed: for arrays, and for the order of the batches of a `PyDataset`. Not
        Keras's undocumented "batch", which orders the rows inside of each batch anew.
      steps: batches to use in each pass; of arrays without a batch size, the batches that a pass is cut
        into, as in Keras (without either a batch holds 32 examples).
      class_weight: weight of each class's examples.
      progress: is told how batches come that Python makes, and that those of a Dataset are counted.

    Raises:
      ValueError: for data of an unknown kind, and for a `batch_size` that is missing or contradicts the data's own.
    """
    seed = whole_number("seed", seed)
    if isinstance(shuffle, str):
        raise UsageError(f"shuffle={shuffle!r} must be True or False")
    if isinstance(data, Examples) and batch_size not in (None, data.batch_size):
        raise UsageError(
            f"batch_size is for plain arrays; these tf2dist.Examples come in batches of {data.batch_size}, found "
            f"batch_size={batch_size}"
        )
    if batch_size is not None and (isinstance(data, tf.data.Dataset) or is_python_source(data)):
        _log.warning(
            "batch_size=%s is ignored, as by Keras: a %s is batched already, by the global batch",
            batch_size, _kind_of(data),
        )  # fmt: skip
    if isinstance(data, _ADAPTERS):
        adapter = data
    elif is_arrays(data):
        adapter = _adapt_arrays(data, batch_size, shuffle, seed, steps)
    elif batch_size is not None and _is_function(data):
        raise UsageError(
            f"batch_size is for arrays, found batch_size={batch_size} for a function; the Dataset that it returns is "
            "batched already"
        )
    elif isinstance(data, tf.data.Dataset):
        adapter = DatasetAdapter(data, steps, progress)
        adapter.check_served()
    elif is_python_source(data):
        adapter = PythonAdapter(PythonSource(data, seed, progress), steps, shuffle=bool(shuffle))
    elif callable(data):
        _check_takes_context(data)
        adapter = InputFunctionAdapter(data)
    elif has_tensor_rows(data):
        arrays = _as_keras_takes_all(data)
        size = _batch_size(arrays, batch_size, steps)
        adapter = DatasetAdapter(batches_of_rows(as_x_y_weight(arrays), size, shuffle=bool(shuffle), seed=seed))
    else:
        raise UsageError(
            "data must be a tf.data.Dataset, a tuple of arrays (x, y), tf2dist.Examples, a PyDataset, a generator or "
            "another iterable of batches, or a function of a tf.distribute.InputContext that returns a Dataset, found "
            f"{_kind_of(data)}"
        )
    return adapter.map(ClassWeight.of(class_weight)) if class_weight else adapter


def _kind_of(data: Any) -> str:
    """Names the type of an unsupported argument, with the element types of a tuple or list."""
    if isinstance(data, (tuple, list)):
        return f"{type(data).__name__} of {', '.join(_kind_of(each) for each in data[:4]) or 'nothing'}"
    return type(data).__name__


def _adapt_arrays(data: Any, batch_size: int | None, shuffle: bool, seed: int, steps: int | None) -> Examples:
    """Arrays as Keras takes them: numbers of another float type become Keras's, and `steps` may say the batch size."""
    arrays = _as_keras_takes_all(data)
    return Examples(arrays, _batch_size(arrays, batch_size, steps), shuffle=shuffle, seed=seed)


def _batch_size(arrays: Any, batch_size: int | None, steps: int | None) -> int:
    """The batch size that was given; else the one that cuts a pass into `steps`, if these were given."""
    if batch_size is not None:
        return batch_size
    return max(1, math.ceil(row_count(arrays) / steps)) if steps else DEFAULT_BATCH_SIZE


def _as_keras_takes_all(data: Any) -> Any:
    if isinstance(data, tuple) and not 1 <= len(data) <= 3:
        raise UsageError(f"arrays come as (x,), (x, y) or (x, y, sample_weight), found {len(data)} of them")
    return tf.nest.map_structure(_as_keras_takes, data)


def _as_keras_takes(value: Any) -> Any:
    if value is None:
        return None
    if is_composite(value):
        tensor = as_composite(value)
        return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor
    array = np.asarray(value)
    if array.ndim == 1 and hasattr(value, "iloc"):  # a pandas.Series is a column
        array = array[:, np.newaxis]
    is_float = np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16"
    return array.astype(keras.config.floatx(), copy=False) if is_float else array


def make_finite_adapter(
    data: Any,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    progress: InputProgress | None = None,
    in_order: bool = False,
) -> FiniteDataAdapter:
    """Adapts anything that `evaluate` and `predict` take, to be read once from beginning to end.

    A function is called once, as for a job of one process; its Dataset is then cut like any other, so that every
    example is used once. `progress` is told as by `make_data_adapter`. `in_order`: the order of the examples matters.

    Raises:
      ValueError: as `make_data_adapter`.
    """
    if batch_size is None and _is_function(data):
        _check_takes_context(data)
        data = data(tf.distribute.InputContext())
        if not isinstance(data, tf.data.Dataset):
            raise UsageError(f"the data function must return a tf.data.Dataset, found {type(data).__name__}")
    adapter = make_data_adapter(data, batch_size=batch_size, steps=steps, progress=progress)
    if isinstance(adapter, InputFunctionAdapter):
        raise UsageError("a data function must be given as it is, and return a tf.data.Dataset")
    if isinstance(adapter, DatasetAdapter):
        adapter = adapter.whole(in_order=in_order)
    if steps and isinstance(adapter, Examples):
        return adapter.first(steps)
    if steps and isinstance(adapter, DatasetAdapter) and has_tensor_rows(data):
        return DatasetAdapter(adapter.dataset, steps)
    return adapter


def takes_batch_size(data: Any) -> bool:
    """Whether the data consists of arrays, which are not batched yet."""
    return not (isinstance(data, (tf.data.Dataset, *_ADAPTERS)) or is_python_source(data) or callable(data))


def _check_takes_context(function: Any) -> None:
    """Raises a UsageError if a function cannot be called with one argument: it may be one that makes a generator."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # one of C, of which nothing is known
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise UsageError(
            f"the data is a function, {name}, which is called with a tf.distribute.InputContext: {error}; give the "
            f"generator that a function makes as {name}()"
        ) from None


def _is_function(data: Any) -> bool:
    return callable(data) and not (isinstance(data, (tf.data.Dataset, *_ADAPTERS)) or is_python_source(data))


def is_arrays(data: Any) -> bool:
    """Whether the data consists of arrays, nested or not."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    return bool(leaves) and all(isinstance(a, (np.ndarray, tf.Tensor)) or hasattr(a, "__array__") for a in leaves)
