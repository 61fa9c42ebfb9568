"""Losses of slices that together are the loss of the whole global batch.

Keras divides a mean over the examples of one replica by the number of replicas (keras/src/losses/loss.py,
`scale_loss_for_distribution`), which is right where all replicas hold equally many examples, and where nothing else
counts. Here each slice has a *weight*, the fraction of the global batch that it holds, and

- a mean over examples counts with the slice's weight, and so does what a model computes by itself (`add_loss` with a
  scalar, an own mean in `compute_loss`, regularizers of weights);
- a sum is added up, and so are losses of layers that have a value for each example;
- a mean over what is not masked, or over sample weights, is over the whole global batch;
- a loss that is one value for all examples, such as `Dice`, or that compares examples with each other, such as
  `Circle`, is computed from the outputs of all slices.

So the losses of all slices, and their gradients, make up those of one device. The functions of Keras that do the
dividing are replaced while a loss of ours is traced, by ones that behave as before in threads that trace none.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import keras
import tensorflow as tf
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.losses import loss as losses

from tf2dist.compat.model import may_be_axis_of_examples
from tf2dist.compat.patching import Patch

_BETWEEN_EXAMPLES = (keras.losses.Dice, keras.losses.Tversky, keras.losses.Circle)


@dataclass(frozen=True)
class OtherMean:
    """A mean in the loss of a slice that is not over its examples.

    Attributes:
      value: of this slice, f32[].
      constant: the same, as it is in the loss; without a gradient.
      weight: what it is the mean over, f32[]: how many entries are not masked, or the sum of sample weights.
    """

    value: tf.Tensor
    constant: tf.Tensor
    weight: tf.Tensor


@dataclass
class _Slice:
    """The slice whose loss a thread is tracing.

    Attributes:
      weight: the fraction of the global batch; 0 for a slice that stands in for an empty one.
      exchanges: may the replicas exchange sums now?
      joins_rows: may they exchange rows? Without `exchanges`, what would need it is left out.
      tape: watches constants of other means, which `other_means` lists, where they may not.
      loss_metrics: those that count what losses come to, by themselves.
    """

    weight: tf.Tensor
    exchanges: bool = False
    joins_rows: bool = False
    tape: tf.GradientTape | None = None
    loss_metrics: Sequence[keras.metrics.Metric] = ()
    other_means: list[OtherMean] = field(default_factory=list)


class _Here(threading.local):  # each replica of a MirroredStrategy is traced in a thread of its own
    slice: _Slice | None = None


_here = _Here()


@contextlib.contextmanager
def mean_of_slice(
    weight: tf.Tensor | None,
    tape: tf.GradientTape | None = None,
    *,
    leave_out: bool = False,
    loss_metrics: Sequence[keras.metrics.Metric] = (),
) -> Iterator[list[OtherMean]]:
    """Inside, losses are such that the mean over slices, with their weights, is the loss of the global batch.

    A `keras.metrics.Mean` of a scalar counts it by the slice's weight.

    Args:
      weight: the fraction of the global batch in this slice, f32[]; 0 for one that stands in for an empty one. None
        changes nothing.
      tape: of slices whose replicas cannot exchange anything while they compute; None for replicas that can.
      leave_out: with a tape, are losses between examples 0 (or those of the slice alone)?
      loss_metrics: metrics that hold losses, which count as Keras has them count.

    Yields:
      With a tape, the means in the loss that are not over examples, which the caller must take out of it: the mean of
      each over slices is with weights of its own.
    """
    if weight is None:
        yield []
        return
    joins_rows = leave_out or (tape is None and exchange_rows(tf.distribute.get_strategy()))
    slice_ = _Slice(weight, exchanges=tape is None, joins_rows=joins_rows, tape=tape, loss_metrics=loss_metrics)
    outer, _here.slice = _here.slice, slice_
    try:
        with _reducing.applied(), _calling.applied(), _averaging.applied():
            yield slice_.other_means
    finally:
        _here.slice = outer


@contextlib.contextmanager
def metrics_of_slice(weight: tf.Tensor | None) -> Iterator[None]:
    """Inside, a `keras.metrics.Mean` of a scalar counts it by the slice's weight, as `mean_of_slice` has it too.

    And a loss that is one of the metrics is that of the slice, as if no other device had any.
    """
    if weight is None:
        yield
        return
    outer, _here.slice = _here.slice, _Slice(weight)
    try:
        with _averaging.applied(), _reducing.applied():
            yield
    finally:
        _here.slice = outer


@contextlib.contextmanager
def of_whole_batch() -> Iterator[None]:
    """Inside, losses are those of a whole batch on one device, however many replicas the strategy has."""
    outer, _here.slice = _here.slice, _Slice(tf.ones([]))
    try:
        with _reducing.applied(), _calling.applied():
            yield
    finally:
        _here.slice = outer


def exchanges_sums() -> bool:
    """Does this thread trace a slice whose replica may exchange sums with the others?"""
    return _here.slice is not None and _here.slice.exchanges


def sum_over_slices(value: tf.Tensor) -> tf.Tensor:
    """The sum over all slices of what each counts, without those that stand in for empty ones."""
    assert _here.slice is not None
    mine = tf.where(_here.slice.weight > 0, value, tf.zeros_like(value))
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, mine)


def as_mean_of_slice(value: tf.Tensor) -> tf.Tensor:
    """A sum over the examples of a slice as something whose mean over slices, with their weights, is their sum."""
    assert _here.slice is not None
    return tf.math.divide_no_nan(value, tf.cast(_here.slice.weight, value.dtype))


def _scale_loss_for_distribution(value):
    return value if _here.slice is not None else _reducing.original("scale_loss_for_distribution")(value)


def _unscale_loss_for_distribution(value):
    return value if _here.slice is not None else _reducing.original("unscale_loss_for_distribution")(value)


def _reduce_weighted_values(values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None):
    reduce = _reducing.original("reduce_weighted_values")
    slice_ = _here.slice
    if slice_ is None or reduction in (None, "none"):
        return reduce(values, sample_weight, mask, reduction, dtype)
    values = tf.convert_to_tensor(values) if dtype is None else keras.ops.convert_to_tensor(values, dtype=dtype)
    weighted = mask is not None or (reduction == "mean_with_sample_weight" and sample_weight is not None)
    if reduction == "sum":
        total = reduce(values, sample_weight, mask, reduction, dtype)
        return as_mean_of_slice(total) if total.shape.rank == 0 else total
    if not values.shape.rank and not weighted and sample_weight is None:
        return values  # Keras leaves it as it is
    if not values.shape.rank and sample_weight is None and (slice_.exchanges or slice_.tape is not None):
        return _where_any_counts(values, mask)
    if not weighted or not values.shape.rank:
        return reduce(values, sample_weight, mask, reduction, dtype)
    with _only_this_slice():
        value = reduce(values, sample_weight, mask, reduction, dtype)
    weight = tf.cast(_weight_of_mean(values, sample_weight, mask, reduction, dtype), value.dtype)
    if slice_.exchanges:
        total = sum_over_slices(weight)
        return as_mean_of_slice(tf.math.divide_no_nan(value * weight, tf.stop_gradient(total)))
    if slice_.tape is None:
        return value
    constant = tf.identity(tf.stop_gradient(value))
    slice_.tape.watch(constant)
    slice_.other_means.append(OtherMean(value, constant, tf.where(slice_.weight > 0, weight, tf.zeros_like(weight))))
    return constant


def _where_any_counts(value: tf.Tensor, mask) -> tf.Tensor:
    """One number for a slice, as it counts where not all of the global batch is masked; then Keras has 0.

    Slices that cannot exchange anything do not know of each other: a global batch of which all is masked counts there.
    """
    assert _here.slice is not None
    if not _here.slice.exchanges:
        return value
    return tf.where(sum_over_slices(tf.reduce_sum(tf.cast(mask, value.dtype))) > 0, value, tf.zeros_like(value))


def _weight_of_mean(values, sample_weight, mask, reduction, dtype) -> tf.Tensor:
    """What Keras divides a sum over a slice by, where not every entry counts as 1."""
    if reduction != "mean_with_sample_weight":
        return tf.reduce_sum(tf.cast(mask, values.dtype))
    convert = keras.ops.convert_to_tensor
    sample_weight = None if sample_weight is None else convert(sample_weight, dtype=dtype)
    mask = None if mask is None else convert(mask, dtype=dtype)
    weights = losses.apply_mask(sample_weight, mask, dtype=values.dtype, reduction=reduction)
    _, weights = losses.squeeze_or_expand_to_same_rank(values, tf.cast(weights, values.dtype))
    return tf.reduce_sum(weights)


@contextlib.contextmanager
def _only_this_slice() -> Iterator[None]:
    """Inside, losses are those of one device that holds nothing else."""
    outer = _here.slice
    assert outer is not None
    _here.slice = replace(outer, weight=tf.ones([]), exchanges=False, joins_rows=False, tape=None)
    try:
        yield
    finally:
        _here.slice = outer


def _call_loss(self, y_true, y_pred, sample_weight=None):
    call, slice_ = _calling.original("__call__"), _here.slice
    if slice_ is None or not slice_.joins_rows or _is_by_example(self, y_true, y_pred):
        return call(self, y_true, y_pred, sample_weight)
    if not slice_.exchanges:
        return tf.zeros([], self.dtype)
    mask = get_keras_mask(y_pred) if isinstance(y_pred, tf.Tensor) else None
    mine = keras.tree.map_structure(lambda t: keras.ops.convert_to_tensor(t, dtype=self.dtype), (y_true, y_pred))
    y_true, y_pred, sample_weight, mask = _rows_of_all_slices((*mine, sample_weight, mask))
    if mask is not None:
        set_keras_mask(y_pred, mask)
    with _only_this_slice():  # the same in all slices; the gradient of the exchange adds up what each has of it
        return call(self, y_true, y_pred, sample_weight)


def _update_mean(self, values, sample_weight=None):
    """Weighs a scalar by its slice, since on one device the whole batch would count once."""
    slice_ = _here.slice
    if slice_ is not None and sample_weight is None and not any(self is metric for metric in slice_.loss_metrics):
        sample_weight = None if keras.ops.shape(values) else slice_.weight
    return _averaging.original("update_state")(self, values, sample_weight=sample_weight)


def _is_by_example(loss: keras.losses.Loss, y_true, y_pred) -> bool:
    """Has the loss a value for each example, which depends on that one alone?"""
    has_rows = not isinstance(y_pred, tf.Tensor) or y_pred.shape.rank != 1  # else Keras takes the mean of the batch
    if is_of_each_example(loss) and has_rows:
        return True
    if isinstance(loss, keras.losses.Circle) or _is_over_the_batch(loss):
        return False
    convert = lambda t: keras.ops.convert_to_tensor(t, dtype=loss.dtype)  # noqa: E731
    y_true, y_pred = keras.tree.map_structure(convert, (y_true, y_pred))
    return bool(keras.ops.convert_to_tensor(loss.call(y_true, y_pred)).shape.rank)


def is_of_each_example(loss: keras.losses.Loss) -> bool:
    """Is this a loss of Keras with a value for each example, which depends on that one alone?"""
    kind = type(loss)
    own = kind.__module__.startswith("keras.") and kind.__name__ != "LossFunctionWrapper"
    return own and not compares_examples(loss)


def compares_examples(loss: keras.losses.Loss) -> bool:
    """Is this a loss of Keras that must see a whole batch at once?"""
    return isinstance(loss, _BETWEEN_EXAMPLES) or _is_over_the_batch(loss)


def _is_over_the_batch(loss: keras.losses.Loss) -> bool:
    """Does it go along the axis of the examples, as `CosineSimilarity(axis=0)`, or along one that may be that?"""
    return may_be_axis_of_examples((getattr(loss, "_fn_kwargs", None) or {}).get("axis"))


def _rows_of_all_slices(structure):
    """The rows of all slices, in their order, with gradients to the slice that each comes from.

    Nothing goes through collective operations: in a loop these take the shape that they met first, and a last batch
    has fewer rows.
    """
    assert _here.slice is not None
    first = next(t for t in tf.nest.flatten(structure) if t is not None)
    rows = tf.where(_here.slice.weight > 0, tf.shape(first)[0], 0)
    return tf.nest.map_structure(lambda t: None if t is None else _joined(tf.convert_to_tensor(t)[:rows]), structure)


@tf.custom_gradient
def _joined(mine):
    """The rows of all replicas, f[sum of n, ...] from this replica's f[n, ...]."""
    context = tf.distribute.get_replica_context()
    rank = tf.get_static_value(context.replica_id_in_sync_group)

    def concatenate(strategy, parts):
        parts = strategy.experimental_local_results(parts)
        return tf.concat(parts, 0), [tf.shape(t)[0] for t in parts]

    rows, counts = context.merge_call(concatenate, args=(mine,))

    def gradient(upstream):
        def add(strategy, upstream):
            return tf.add_n(strategy.experimental_local_results(upstream))

        begin = tf.add_n([tf.zeros([], tf.int32), *counts[:rank]])
        return context.merge_call(add, args=(upstream,))[begin : begin + counts[rank]]

    return rows, gradient


def exchange_rows(strategy: tf.distribute.Strategy) -> bool:
    """Can replicas of this strategy join their rows, as a loss between examples needs it?"""
    return not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


_reducing = Patch(
    losses,
    {
        "scale_loss_for_distribution": _scale_loss_for_distribution,
        "unscale_loss_for_distribution": _unscale_loss_for_distribution,
        "reduce_weighted_values": _reduce_weighted_values,
    },
)
_calling = Patch(keras.losses.Loss, {"__call__": _call_loss})
_averaging = Patch(keras.metrics.Mean, {"update_state": _update_mean})
