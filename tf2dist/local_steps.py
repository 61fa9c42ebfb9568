"""Several updates on a copy of the weights, whose difference is then added to the servers' weights."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from tf2dist import keras3
from tf2dist.packed import Packed
from tf2dist.step import Steps

_PACKED = 1 << 20  # bytes of a variable that does not travel alone, at most


class LocalSteps:
    """Trains a copy of a model's variables for several steps between two meetings with the servers.

    The weights get the difference that the steps made, so no worker's steps are lost (n_fetch and n_push of
    DistBelief, Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1). Everything else that the
    steps change (moments of the optimizer, statistics of the layers) is written as it came out: a sum of two
    workers' differences need not be a moment of anything, a mean of squares could become negative.
    """

    def __init__(self, steps: Steps):
        model, self.steps = steps.model, steps
        self._weights = model.trainable_variables
        rate = getattr(model.optimizer, "_learning_rate", None)  # callbacks set it; a worker only reads it
        counters = [o.iterations for o in (model.optimizer, getattr(model.optimizer, "inner_optimizer", None)) if o]
        counters = list({id(c): c for c in counters}.values())
        others = [*model.optimizer.variables, *model.non_trainable_variables]
        state = [v for v in others if all(v is not known for known in (rate, *counters))]
        self._moved = len(self._weights) + len(counters)
        self._written = Packed([*self._weights, *counters, *state], _PACKED)
        # What is only read comes along, too: to read it in each step would be to meet the servers in each.
        read = [rate] if isinstance(rate, keras.Variable) else []
        self._all = Packed([*self._written.variables, *read], _PACKED)

    def train(self, batch: Callable, n) -> list[tf.Tensor]:
        """Takes `n` i32[] steps, of what `batch()` returns; returns their totals. In a graph on the worker."""
        written = len(self._written.variables)
        fetched, totals = self._all.read(), self.steps.zeros()
        values, read = fetched[:written], fetched[written:]
        for _ in tf.range(n):
            values, more = self._step([*values, *read], batch())
            totals = self.steps.combine(totals, more)
        old, moved = fetched[: self._moved], values[: self._moved]
        news = [b - a for a, b in zip(old, moved, strict=True)] + values[self._moved :]
        for number, (variable, new) in enumerate(
            zip(self._written.variables, self._written.at_home(news), strict=True)
        ):
            (variable.value.assign_add if number < self._moved else variable.value.assign)(new)
        return totals

    def _step(self, values, batch):
        mapping = list(zip(self._all.variables, values, strict=True))
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            gradients, totals = self.steps.differentiate(batch, None)
            # What the optimizer reads is on this worker; sparse gradients would save nothing.
            gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
            with keras3.on_tensors(self.steps.model.optimizer):
                self.steps.model.optimizer.apply(gradients, self._weights)
        return [scope.get_current_value(v) for v in self._written.variables], totals
