"""What a thread that traces a `train_step` of the user's own knows of it: on which slice it runs, what it has computed.

Attributes of `here`, each None or missing elsewhere:
  weight: of the slice, f32[]: the fraction of the global batch in it.
  sliced: the strategy on whose slices the step shall run, while a trace looks whether it can.
  inside: True while one of the functions runs that are replaced for a step.
  means: tensors that are known to be means over the slice, by their ids.
  totals: gradients that are known to be those of the whole batch, by their ids.
  updates: optimizers and variables of the updates that a trace has seen, instead of their being made.
  gradients: what `GradientTape.gradient` has returned in a trace, by their ids.
  applied: what optimizers were to apply in a trial.
  inlines: True where a `tf.function` that a step calls runs as part of it, also on a whole batch.
  graph: in which a trace or a trial runs the step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

here = threading.local()  # each replica of a MirroredStrategy is traced in a thread of its own


def slice_weight() -> tf.Tensor | None:
    """The weight of the slice whose step this thread traces; None elsewhere."""
    return getattr(here, "weight", None)


def is_step() -> bool:
    """Does the code of a step call, and not one of the functions that are replaced for it?"""
    return not getattr(here, "inside", False)


def is_on_slice() -> bool:
    """As `is_step`, of a step on a slice, or while a trace of it looks whether it can run on slices."""
    return is_step() and (slice_weight() is not None or getattr(here, "sliced", None) is not None)


@contextlib.contextmanager
def set_here(**values) -> Iterator[None]:
    """Inside, this thread knows these values; afterwards what it knew before."""
    before = {name: getattr(here, name, None) for name in values}
    vars(here).update(values)
    try:
        yield
    finally:
        vars(here).update(before)
