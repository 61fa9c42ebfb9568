"""A `train_step` of the user's own on a slice of the global batch.

What such a step computes is written for a whole batch, and mostly a mean over it. So here every loss of Keras, and
every loss that a layer adds, is one whose mean over the slices, each by its weight (the fraction of the global batch in
it), is that of the whole batch: `global_batch_loss`, `layer_losses`. Two things then make the numbers those of one
device:

- `GradientTape.gradient` by variables is the gradient of the whole batch, so that a step may clip it, measure it, or
  take it for a step of its own, before an optimizer gets it. The slices' gradients are added up, those of a mean times
  the slice's weight; those of a sum over examples, or of several values (one an example, say), whose sum is then meant,
  as they are. Gradients by other tensors are of this slice, likewise weighed.
- a `keras.metrics.Mean` of a scalar counts it by the weight.

A `tf.function` that a step calls runs as part of it: it would keep a trace of its own, in which what is replaced here
stays replaced.

All of it holds while such a step is traced, in threads that trace one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.trainer import Trainer
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from tf2dist.compat import (
    global_batch_gradients,
    global_batch_loss,
    layer_losses,
    synchronized_batch_normalization,
    versions,
)
from tf2dist.compat.autograph import as_in_function
from tf2dist.compat.custom_step_state import here, is_on_slice, is_step, set_here, slice_weight
from tf2dist.compat.patching import Patch
from tf2dist.compat.sums_or_means import depends_on, terms
from tf2dist.errors import TrainingError

_PLAIN_STEP = 0.01


@contextlib.contextmanager
def on_slice(weight: tf.Tensor | None) -> Iterator[None]:
    """Inside, a step of the user's own runs on a slice with this weight, f32[]; None for a whole batch."""
    if weight is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(set_here(weight=weight, means={}, totals={}))
        stack.enter_context(global_batch_loss.mean_of_slice(weight))
        stack.enter_context(layer_losses.kept_apart(added_loss))
        stack.enter_context(synchronized_batch_normalization.over_slices())
        for patch in patches:
            stack.enter_context(patch.applied())
        yield


@contextlib.contextmanager
def functions_inlined() -> Iterator[None]:
    """Inside, a `tf.function` that a step calls runs as part of it, on a whole batch too."""
    with set_here(inlines=True), _functions.applied():
        yield


@contextlib.contextmanager
def trying() -> Iterator[list[tuple[str, tf.Tensor]]]:
    """Inside, optimizers take a plain step along the gradients: theirs may make much of what is rounding alone.

    Yields:
      What they were to apply: paths of variables, and gradients; all of one call are followed by an empty path.
    """
    applied: list = []
    with set_here(applied=applied, graph=tf.compat.v1.get_default_graph()):
        yield applied


def note_applied(gradients: Sequence[tuple[str, tf.Tensor]]) -> None:
    """Says to `trying` what would be applied: gradients with the paths of their variables."""
    if here.applied is not None:
        here.applied += [*gradients, ("", tf.zeros([]))]


def _replacing(owner: type, name: str, make: Callable[[Callable], Callable]) -> Patch:
    """Returns a patch that replaces a method of `owner` by `make(original)`."""

    def original(self, *args, **kwargs):
        return patch.original(name)(self, *args, **kwargs)

    patch = Patch(owner, {name: make(original)})
    return patch


def _as_known_mean(value: tf.Tensor) -> tf.Tensor:
    here.means[id(value)] = value  # an id is its own only while it lives
    return value


def _loss(original: Callable) -> Callable:
    def loss(self, *args, **kwargs):
        if not is_on_slice():
            return original(self, *args, **kwargs)
        if slice_weight() is None and isinstance(self, keras.losses.Loss):
            _check_exchange(self)
        with set_here(inside=True):
            value = original(self, *args, **kwargs)
        return value if value.shape.rank else _as_known_mean(value)

    return loss


def _check_exchange(loss: keras.losses.Loss) -> None:
    if global_batch_loss.compares_examples(loss) and not global_batch_loss.exchange_rows(here.sliced):
        raise TrainingError(
            f"train_step computes {type(loss).__name__}, which is no mean over examples and needs all of a batch: use "
            "strategy one or mirrored"
        )


def added_loss(key, loss: tf.Tensor) -> tf.Tensor:
    """What a layer has added, as a mean."""
    is_sum = layer_losses.is_of_each_example(loss) or terms(loss, here.means, here.totals) == {"sum"}
    return _as_known_mean(global_batch_loss.as_mean_of_slice(loss) if is_sum and slice_weight() is not None else loss)


def _average_loss(per_example_loss, sample_weight=None, global_batch_size=None):
    average = _distributed_losses.original("compute_average_loss")
    if global_batch_size is not None or not is_on_slice():
        return average(per_example_loss, sample_weight, global_batch_size)
    # By the number of replicas, too, if it is not told by what.
    size = tf.shape(per_example_loss)[0]
    return _as_known_mean(average(per_example_loss, sample_weight, size))


def _regularization_loss(regularization_loss):
    if is_on_slice():
        return tf.reduce_sum(regularization_loss)
    return _distributed_losses.original("scale_regularization_loss")(regularization_loss)


def _gradient(original: Callable) -> Callable:
    def gradient(self, target, sources, output_gradients=None, unconnected_gradients=tf.UnconnectedGradients.NONE):
        weight = slice_weight()
        known = getattr(here, "gradients", None)
        if not is_step() or (weight is None and known is None):
            return original(self, target, sources, output_gradients, unconnected_gradients)
        variables = tf.nest.flatten(sources)
        summed = [n for n, v in enumerate(variables) if isinstance(v, (keras.Variable, tf.Variable))]
        seeds = _seeds(target, output_gradients) if is_on_slice() else output_gradients
        if known is not None:
            read = tf.nest.map_structure(_in_trace, sources)
            found = original(self, target, read, output_gradients, unconnected_gradients)
            found = tf.nest.map_structure(lambda g, v: _zeros_if_assigned(v) if g is None else g, found, sources)
            gradients = tf.nest.flatten(found)
            known.update({id(_values(g)): g for g in gradients})
        else:
            found = original(self, target, sources, seeds, unconnected_gradients)
            gradients = [_of_known_slice(g, weight) for g in tf.nest.flatten(found)]
            with set_here(inside=True):
                sums = global_batch_gradients.sum_over_replicas(
                    [gradients[n] for n in summed], [variables[n] for n in summed]
                )
            for n, total in zip(summed, sums, strict=True):
                gradients[n] = total
            found = tf.nest.pack_sequence_as(sources, gradients)
        here.totals.update({id(_values(gradients[n])): _values(gradients[n]) for n in summed})
        return found

    return gradient


def _seeds(target, output_gradients):
    """Returns `output_gradients`, times the slice's weight for targets that are means over the slice.

    Those of a sum count for a slice that does not stand in for an empty one: through statistics of the whole batch
    they reach the other replicas.
    """
    targets, weight = tf.nest.flatten(target), slice_weight()
    given = [None] * len(targets) if output_gradients is None else tf.nest.flatten(output_gradients)
    if len(given) != len(targets) or not all(map(tf.is_symbolic_tensor, targets)):
        return output_gradients
    are_means = [t.shape.is_fully_defined() and not _is_sum(t) for t in targets]
    if weight is None:
        return output_gradients
    seeds = [
        tf.ones_like(t) if seed is None else tf.convert_to_tensor(seed, t.dtype)
        for t, seed in zip(targets, given, strict=True)
    ]
    counts = tf.cast(weight > 0, tf.float32)
    return [
        seed * tf.cast(weight if is_mean else counts, seed.dtype)
        for seed, is_mean in zip(seeds, are_means, strict=True)
    ]


def _in_trace(source):
    """What a tape knows a source by: a variable that was assigned is a tensor while a step is traced."""
    return source.value if _is_assigned(source) else source


def _is_assigned(source) -> bool:
    return isinstance(source, keras.Variable) and tf.is_symbolic_tensor(source.value)


def _zeros_if_assigned(source):
    return tf.zeros_like(source.value) if _is_assigned(source) else None


def _values(gradient):
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _of_known_slice(gradient, weight: Any):
    """The gradient; a slice that stands in for an empty one has none, whatever its rows give."""
    if gradient is None:
        return None
    values = _values(gradient)
    known = tf.where(weight > 0, values, tf.zeros_like(values))
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(known, gradient.indices, gradient.dense_shape)
    return known


def _is_sum(loss: tf.Tensor) -> bool:
    """Is this a sum over the examples of the slice?

    Raises:
      TrainingError: it has a sum and other terms, which would have to be scaled differently.
    """
    found = terms(loss, here.means, here.totals)
    if "sum" in found and len(found) > 1:
        raise TrainingError(
            "train_step adds a sum over examples to a mean over them, or to a term of the weights alone, which cannot "
            "be scaled to a part of a batch: use means (keras.ops.mean), or strategy one"
        )
    if "other" in found:
        raise TrainingError(
            "train_step minimizes what is neither a sum nor a mean over examples (the root of a mean, say, or a mean "
            "divided by another), which cannot be had from parts of a batch: use means (keras.ops.mean), or strategy "
            "one"
        )
    return "sum" in found


def as_mean(value):
    """Returns a scalar whose mean over the slices, each by its weight, is the value for the whole batch."""
    weight: Any = slice_weight()
    if weight is None or not tf.is_symbolic_tensor(value) or value.shape.rank != 0:
        return value
    if terms(value, here.means, here.totals) != {"sum"}:
        return value
    return tf.math.divide_no_nan(value, tf.cast(weight, value.dtype))


def _mean(original: Callable) -> Callable:
    def update_state(self, values, sample_weight=None):
        if slice_weight() is not None and sample_weight is None and len(keras.ops.shape(values)) == 0:
            if not getattr(here, "inside", False):  # what Keras's own losses count is a mean already
                values = as_mean(values)
            sample_weight = slice_weight()
        return original(self, values, sample_weight=sample_weight)

    return update_state


def _apply(original: Callable) -> Callable:
    def apply(self, grads, trainable_variables=None):
        if getattr(here, "updates", None) is not None:
            if is_on_slice():
                _check_condition()
                _check_gradients(grads)
            here.updates.append((self, list(trainable_variables or ())))
            return None
        if not is_on_slice():
            return original(self, grads, trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        if getattr(here, "applied", None) is not None:
            return _take_plain_step(self, list(grads), list(variables))
        with set_here(inside=True):
            return global_batch_gradients.apply_sums(self, list(grads), list(variables))

    return apply


def _take_plain_step(optimizer, gradients: Sequence, variables: Sequence) -> None:
    scale = optimizer.dynamic_scale.value if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else 1.0
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is not None:
            gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype) / tf.cast(scale, variable.dtype)
            if gradient.graph is here.graph:  # not in a branch of a condition
                here.applied.append((variable.path, gradient))
            variable.assign_sub(_PLAIN_STEP * gradient)
    here.applied.append(("", tf.zeros([])))


def _call_function(original: Callable) -> Callable:
    def call(self, *args, **kwargs):
        inlines = [getattr(here, name, None) is not None for name in ("weight", "updates", "inlines")]
        if not any(inlines) or tf.executing_eagerly():
            return original(self, *args, **kwargs)
        function = self.python_function
        if self._autograph:
            function = autograph_util.py_func_from_autograph(function, self._experimental_autograph_options)
        with as_in_function(autograph=self._autograph):
            return function(*args, **kwargs)

    return call


def _check_condition() -> None:
    if tf.compat.v1.get_default_graph() is not here.graph:
        raise TrainingError(
            "train_step applies gradients in a condition or a loop of a graph (tf.cond, tf.while_loop), where replicas "
            "cannot meet: use the optimizer's gradient_accumulation_steps if that is what it is for, or strategy one"
        )


def _check_gradients(gradients: Sequence) -> None:
    for each in gradients:
        if each is not None and depends_on(_values(each), here.gradients) == "data":
            raise TrainingError(
                "train_step applies what GradientTape.gradient has not returned, and what is not made of it, which "
                "cannot be had from parts of a batch: use strategy one"
            )


_distributed_losses = Patch(
    tf.nn, {"compute_average_loss": _average_loss, "scale_regularization_loss": _regularization_loss}
)
_functions = _replacing(Function, "__call__", _call_function)
patches = [
    _distributed_losses,
    _replacing(tf.GradientTape, "gradient", _gradient),
    _replacing(keras.losses.Loss, "__call__", _loss),
    _replacing(Trainer, "compute_loss", _loss),
    _replacing(keras.metrics.Mean, "update_state", _mean),
    _functions,
    *(_replacing(optimizer, "apply", _apply) for optimizer in versions.optimizers_with_own_apply()),
]
