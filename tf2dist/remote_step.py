"""One update of the servers' variables by a worker, with as few messages as it takes."""

from __future__ import annotations

import keras
import tensorflow as tf

from tf2dist import whole_gradients
from tf2dist.packed import Packed
from tf2dist.sharding import ShardedEmbedding
from tf2dist.step import Steps

_PACKED = 1 << 19  # bytes of a weight that does not travel alone, at most; more take longer to copy than to call


class RemoteStep:
    """Takes one update, as `Steps.train` does on one replica; weights, and gradients, travel together."""

    def __init__(self, steps: Steps):
        self.steps, self.model = steps, steps.model
        weights = self.model.trainable_variables
        # Of a table that is looked up, a few rows are read and written where it is.
        tables = {id(v) for layer in _lookups(self.model) for v in layer.trainable_variables}
        small = [v for v in weights if id(v) not in tables and _bytes(v) <= _PACKED]
        self._small = Packed(small, _PACKED)
        self._server = weights[0].value.device if weights else None

    def train(self, batch) -> list[tf.Tensor]:
        """Takes one update on `batch`; returns its totals. In a replica's graph on the worker."""
        small = self._small.variables
        fetched = list(zip(small, self._small.read(), strict=True))
        with keras.StatelessScope(state_mapping=fetched, collect_losses=True) as scope:
            # Keras asks the scope for whatever is regularized; the other weights are read where they are.
            for variable in self.model.trainable_variables:
                scope.state_mapping.setdefault(id(variable), variable._value)
            gradients, totals = self.steps.differentiate(batch, None)
        for variable in self.model.non_trainable_variables:  # seeds and statistics, which the scope has held back
            new = scope.get_current_value(variable)
            if new is not None:
                variable.assign(new)
        gradients = self._at_home(gradients)
        # Numbers that only the optimizer needs, and what it makes of them, stay on the server.
        with tf.device(self._server):
            whole_gradients.apply(self.model.optimizer, gradients, self.model.trainable_variables)
        return totals

    def _at_home(self, gradients) -> list:
        """The gradients, those of small weights on the devices of these; sparse ones as they are."""
        weights, home = self.model.trainable_variables, list(gradients)
        small = {id(v) for v in self._small.variables}
        places = [n for n, g in enumerate(gradients) if isinstance(g, tf.Tensor) and id(weights[n]) in small]
        packed = Packed([weights[n] for n in places], _PACKED)
        for n, gradient in zip(places, packed.at_home([gradients[n] for n in places]), strict=True):
            home[n] = gradient
        return home


def _lookups(model: keras.Model) -> list[keras.Layer]:
    kinds = (keras.layers.Embedding, ShardedEmbedding)
    return [layer for layer in model._flatten_layers() if isinstance(layer, kinds)]


def _bytes(variable: keras.Variable) -> int:
    return variable.value.shape.num_elements() * variable.value.dtype.size
