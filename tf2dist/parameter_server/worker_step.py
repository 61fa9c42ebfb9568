"""One update of the servers' variables by a worker, with as few messages as possible."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

import keras
import tensorflow as tf

from tf2dist.compat.custom_gradients import reads_noted
from tf2dist.compat.model import layers_of, own_states
from tf2dist.compat.optimizers import overwrites_with_gradient
from tf2dist.compat.stateless_scope import OverlayScope
from tf2dist.execution.loss_fractions import scaled
from tf2dist.execution.train_step_interface import GradientStep
from tf2dist.layers.sharded_embedding import ShardedEmbedding
from tf2dist.parameter_server.fencing_tokens import HeldToken
from tf2dist.parameter_server.fused_transfer import WORKER_STEP_LIMIT, FusedTransfer, nbytes
from tf2dist.parameter_server.update_counter import UpdateCounter
from tf2dist.parameter_server.variable_mutex import mutex_of_update, one_update_at_a_time
from tf2dist.parameter_server.worker_pool import TraceAgain

_COMPUTES = ("call", "compute_loss")  # methods of a model
_LOOKUPS = keras.layers.Embedding, ShardedEmbedding
_NOT_WRITTEN = *_LOOKUPS, keras.layers.Normalization  # nor read: what `adapt` has found is in constants


class WorkerStep:
    """Makes one update, as `TrainStep.update` does on one replica; what is small travels together.

    Args:
      step: whose updates.
      counter: counts them.

    Attributes:
      on_one_server: whether all variables are where updates are counted; then a mutex is around a whole update.
    """

    def __init__(self, step: GradientStep, counter: UpdateCounter):
        self._step, self._model, self._counter = step, step.model, counter
        variables = [*self._model.variables, *self._model.optimizer.variables]
        self.on_one_server = {v.value.device for v in variables} <= {counter.variable.device}
        weights = self._model.trainable_variables
        small, self._scales = read_together(self._model)
        self._states = written_by_layers(self._model, {v.dtype for v in small})
        self._will_read(small)
        self._first_server = weights[0].value.device if weights else None

    def _will_read(self, small: list[keras.Variable]) -> None:
        self._small = small
        self._transfer = FusedTransfer([*small, *self._scales, *self._states], WORKER_STEP_LIMIT)

    @property
    def _is_answered(self) -> bool:
        """Whether the server answers an update with the weights that the next one reads together."""
        return self.on_one_server and bool(self._transfer.variables)

    def begin(self) -> list[tf.Tensor]:
        """What the first update of an execution is told. In a replica's graph on the worker."""
        told = self._transfer.pack() if self._is_answered else [tf.constant(True)]
        return [tf.identity(t) for t in told]  # or a loop would have its variables on the server

    def update(self, batch, token: HeldToken, told: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Makes one update on `batch`, if the server finds the token valid.

        In a replica's graph on the worker. Returns its metric sums, and what the next update is told: if all is on
        one server, the weights that are read together; else whether this update was valid.

        Args:
          batch: as `GradientStep.gradients` gets it.
          token: of the execution.
          told: what `begin`, or the update before, has returned.
        """
        weights, optimizer = self._model.trainable_variables, self._model.optimizer
        fetched = self._transfer.unpack_here(told) if self._is_answered else self._transfer.fetch()
        overlay = OverlayScope(zip(self._transfer.variables, fetched, strict=True), weights)
        with overlay as scope, reads_noted(fetched[: len(self._small)]) as hidden:
            gradients, sums = self._step.gradients(batch, None)
        if hidden:  # their gradients are not complete
            self._will_read([v for n, v in enumerate(self._small) if n not in hidden])
            raise TraceAgain
        trained = {id(v) for v in weights}
        # Another worker's update since a weight was read is not to be lost.
        written = [
            (v, value - tf.convert_to_tensor(scope.before(v)) if id(v) in trained else value)
            for v, value in scope.written()
        ]
        scales_at = slice(len(self._small), len(self._small) + len(self._scales))
        scales = zip(self._scales, fetched[scales_at], strict=True)
        sent, received = self._send(gradients, [*scales, *written])

        def apply():
            gradients, others = received()
            scales, values = others[: len(self._scales)], others[len(self._scales) :]
            for (variable, _), value in zip(written, values, strict=True):
                (variable.value.assign_add if id(variable) in trained else variable.value.assign)(value)
            # Numbers that only the optimizer needs, and what it computes from them, stay on the server.
            alone = contextlib.nullcontext() if self.on_one_server else one_update_at_a_time(optimizer, weights)
            with tf.device(self._first_server), alone:
                self._step.apply(self._rescaled(gradients, scales))

        mutex = mutex_of_update(optimizer, weights, gradients) if self.on_one_server else None
        answer = self._transfer.pack if self._is_answered else None
        return sums, [tf.identity(t) for t in self._counter.apply(apply, sent, 1, token, mutex, answer)]

    def _rescaled(self, gradients, scales) -> list:
        """Gradients of a loss that had these scales, as if it had those of now, by which Keras divides them."""
        for variable, scale in zip(self._scales, scales, strict=True):  # another worker's update may have changed it
            change, weights = variable.value / scale, self._model.trainable_variables
            gradients = [
                g if overwrites_with_gradient(v) else scaled(g, change) for g, v in zip(gradients, weights, strict=True)
            ]
        return gradients

    def _send(self, gradients, others) -> tuple[list[tf.Tensor], Callable[[], tuple[list, list[tf.Tensor]]]]:
        """Sends gradients, and values for other variables, to where the variables are; what is small together.

        Returns the tensors that arrive there, and a function that makes gradients and the other values of them.
        """
        weights, alone = self._model.trainable_variables, list(gradients)
        small = {id(v) for v in self._small}
        places = [n for n, g in enumerate(gradients) if isinstance(g, tf.Tensor) and id(weights[n]) in small]
        for n, gradient in enumerate(gradients):
            if n not in places and gradient is not None:
                with tf.device(weights[n].value.device):
                    alone[n] = _copied(gradient)
        transfer = FusedTransfer([*(weights[n] for n in places), *(v for v, _ in others)], WORKER_STEP_LIMIT)
        values = [tf.cast(value, variable.value.dtype) for variable, value in others]
        together = transfer.send([*(gradients[n] for n in places), *values])

        def received():
            whole, unpacked = list(alone), transfer.unpack(together)
            for n, gradient in zip(places, unpacked[: len(places)], strict=True):
                whole[n] = gradient
            return whole, unpacked[len(places) :]

        return [*(t for n, g in enumerate(alone) if n not in places for t in _parts(g)), *together], received


def read_together(model: keras.Model) -> tuple[list[keras.Variable], list[keras.Variable]]:
    """The weights, and the scale of the loss, if it has one, that a worker reads in few messages."""
    # Of a table that is looked up, a few rows are read and written where it is.
    alone = {id(v) for layer in _lookup_layers(model) for v in layer.trainable_variables}
    alone |= {id(v) for v in weights_of_functions(model)}
    small = [v for v in model.trainable_variables if id(v) not in alone and nbytes(v) <= WORKER_STEP_LIMIT]
    scaling = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    return small, [model.optimizer.dynamic_scale] if scaling else []


def written_by_layers(model: keras.Model, dtypes: Collection[str]) -> list[keras.Variable]:
    """What Keras's layers in a model may read and write in each step of a training, if it is small.

    These are statistics, as those of `BatchNormalization`, and the states of random numbers. Whatever else has another
    dtype than the weights would cost a message of its own, read or not. A layer of the user's own may use its variables
    as those of TensorFlow, which they are not in an `OverlayScope`.

    Args:
      model: built.
      dtypes: of the weights that are read together.
    """
    alone = {id(v) for v in weights_of_functions(model)}
    keras_layers = [layer for layer in layers_of(model) if type(layer).__module__.startswith("keras.")]
    trained = [layer for layer in keras_layers if layer.trainable and not isinstance(layer, _NOT_WRITTEN)]
    states = {id(v): v for layer in trained for v in own_states(layer, dtypes)}  # a layer may be there twice
    return [v for v in states.values() if id(v) not in alone and nbytes(v) <= WORKER_STEP_LIMIT]


def weights_of_functions(model: keras.Model) -> list[keras.Variable]:
    """The weights of layers that have a `tf.function`, as their `call`: it keeps for good what they were in a trace.

    Of a model those of what computes it count, and not one that serves it elsewhere.
    """
    found: list[keras.Variable] = []
    for layer in layers_of(model):
        own = [vars(layer), *(vars(c) for c in type(layer).__mro__ if not c.__module__.startswith("keras."))]
        held = {name: value for names in reversed(own) for name, value in names.items()}
        if isinstance(layer, keras.Model):
            held = {name: held[name] for name in _COMPUTES if name in held}
        if any(isinstance(value, tf.types.experimental.PolymorphicFunction) for value in held.values()):
            found += layer.variables
    return found


def _lookup_layers(model: keras.Model) -> list[keras.Layer]:
    return [layer for layer in layers_of(model) if isinstance(layer, _LOOKUPS)]


def _copied(gradient):
    """The gradient, a tensor or slices, on the current device."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape)
    return tf.identity(gradient)


def _parts(gradient) -> list[tf.Tensor]:
    """The tensors that make up a gradient; none for None."""
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values, gradient.indices]
    return [] if gradient is None else [gradient]
