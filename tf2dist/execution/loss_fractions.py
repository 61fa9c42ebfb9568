"""The loss of a slice and its gradients, as numerators that add up over the slices of a global batch.

Most losses are means over examples: the slices' numerators are their means times their weights, and the denominators
add up to 1. Where replicas cannot exchange sums while they compute, a mean over something else (what is not masked,
sample weights) becomes a fraction of its own, divided when all slices are together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf


class Fraction(NamedTuple):
    """A slice's contribution to one part of the loss, as numerators and a denominator.

    Attributes:
      denominator: f32[]; the part is the sum of the slices' numerators by the sum of these.
      values: numerators of the loss, and of what else is made of losses: a list of f32[].
      gradients: numerators, one a trainable variable: tensors, `tf.IndexedSlices` or None.
    """

    denominator: tf.Tensor
    values: list[tf.Tensor]
    gradients: list


def quotients(fractions: Sequence[Fraction], denominators: Sequence) -> tuple[list[tf.Tensor], list]:
    """The values and gradients of all parts together, by these denominators."""
    factors = [tf.math.divide_no_nan(1.0, d) for d in denominators]
    values = [[t * tf.cast(f, t.dtype) for t in x.values] for x, f in zip(fractions, factors, strict=True)]
    gradients = [[scaled(g, f) for g in x.gradients] for x, f in zip(fractions, factors, strict=True)]
    return [tf.add_n(ts) for ts in zip(*values, strict=True)], [
        _of_one_batch(gs) for gs in zip(*gradients, strict=True)
    ]


def scaled(gradient, factor: tf.Tensor):
    """A gradient times a factor f32[]; None stays None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def _of_one_batch(gradients: Sequence):
    """The sum of gradients of one variable by parts of one loss; what was looked up once stays looked up once.

    An optimizer that squares gradients takes rows that are there twice for two lookups, so where the parts have the
    same lookups their values are added.
    """
    known = [g for g in gradients if g is not None]
    if len(known) < 2 or not all(isinstance(g, tf.IndexedSlices) for g in known):
        return added(known)

    def same_lookups():
        return tf.reduce_all([tf.reduce_all(tf.equal(g.indices, known[0].indices)) for g in known[1:]])

    same_sizes = tf.reduce_all([tf.equal(tf.size(g.indices), tf.size(known[0].indices)) for g in known[1:]])
    values, indices = tf.cond(
        tf.cond(same_sizes, same_lookups, lambda: tf.constant(False)),
        lambda: (tf.add_n([g.values for g in known]), known[0].indices),
        lambda: (tf.concat([g.values for g in known], 0), tf.concat([g.indices for g in known], 0)),
    )
    return tf.IndexedSlices(values, indices, known[0].dense_shape)


def added(gradients: Sequence):
    """The sum of gradients of one variable, sparse if all are; None for none."""
    known = [g for g in gradients if g is not None]
    if len(known) < 2:
        return known[0] if known else None
    if all(isinstance(g, tf.IndexedSlices) for g in known):
        values, indices = (tf.concat([getattr(g, name) for g in known], 0) for name in ("values", "indices"))
        return tf.IndexedSlices(values, indices, known[0].dense_shape)
    return tf.add_n([tf.convert_to_tensor(g) for g in known])
