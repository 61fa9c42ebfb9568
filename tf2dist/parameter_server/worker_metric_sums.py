"""Metric sums over many steps on a worker, in float64 and int64: a float32 would lose counts past 2**24."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tf2dist.execution.train_step_interface import TrainStep


def zeros(step: TrainStep) -> list[tf.Tensor]:
    """The metric sums of no steps."""
    return [tf.cast(z, _wide(z.dtype)) for z in step.zero_sums()]


def add(step: TrainStep, sums: Sequence[tf.Tensor], more: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Wide sums with those of another step, of any dtypes."""
    return step.add_sums(sums, [tf.cast(m, s.dtype) for s, m in zip(sums, more, strict=True)])


def repeat(step: TrainStep, run: Callable[[], list[tf.Tensor]], n) -> list[tf.Tensor]:
    """The metric sums of `n` i32[] calls of `run()`. In a graph."""
    return keras.ops.fori_loop(0, n, lambda _, sums: add(step, sums, run()), zeros(step))


def _wide(dtype: tf.DType) -> tf.DType:
    return tf.float64 if dtype.is_floating else tf.int64 if dtype.is_integer else dtype
