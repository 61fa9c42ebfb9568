"""Local SGD: several updates on a copy of the weights, whose difference is then added to the servers' weights."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf2dist.compat.custom_gradients import reads_noted
from tf2dist.compat.optimizers import learning_rate_variables, wrapped_counters
from tf2dist.compat.stateless_optimizer import on_tensors
from tf2dist.compat.stateless_scope import OverlayScope
from tf2dist.errors import UsageError
from tf2dist.execution.train_step_interface import GradientStep
from tf2dist.parameter_server import worker_metric_sums
from tf2dist.parameter_server.fencing_tokens import HeldToken
from tf2dist.parameter_server.fused_transfer import LOCAL_STEPS_LIMIT, FusedTransfer
from tf2dist.parameter_server.update_counter import UpdateCounter
from tf2dist.parameter_server.worker_batches import WorkerBatches
from tf2dist.parameter_server.worker_step import weights_of_functions


class LocalSgd:
    """Trains a copy of a model's variables for several steps between two exchanges with the servers.

    The servers' weights get the difference that the steps made, so no worker's steps are lost (n_fetch and n_push of
    DistBelief, Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1). All other variables that the
    steps change (moments of the optimizer, statistics of the layers) are overwritten with the worker's: the sum of
    two workers' differences need not be a valid moment; a mean of squares could become negative.

    Args:
      step: whose updates.
      counter: counts them.
    """

    def __init__(self, step: GradientStep, counter: UpdateCounter):
        model, self._step, self._counter = step.model, step, counter
        for weight in weights_of_functions(model)[:1]:
            raise _no_copy_of(weight)
        self._weights = model.trainable_variables
        rates = learning_rate_variables(model.optimizer)  # callbacks set them; a worker only reads them
        counters = wrapped_counters(model.optimizer)
        known = {id(v) for v in (*rates, *counters)}
        others = [*model.optimizer.variables, *model.non_trainable_variables]
        state = [v for v in others if id(v) not in known]
        self._added = len(self._weights) + len(counters)  # variables to which the difference is added
        self._written = FusedTransfer([*self._weights, *counters, *state], LOCAL_STEPS_LIMIT)
        # The rates are only read, but fetched with the others: reading one in each step would be a message in each.
        self._fetched = FusedTransfer([*self._written.variables, *rates], LOCAL_STEPS_LIMIT)

    def run_round(
        self, batches: WorkerBatches, ahead: Any, number: tf.Tensor, n, end: tf.Tensor, token: HeldToken
    ) -> tuple[list[tf.Tensor], Any]:
        """Makes `n` i32[] updates on the batches from `number` i64[] on, if the server finds the token valid.

        In a graph on the worker. Returns their metric sums and what is ahead of `batches`.
        """
        written = len(self._written.variables)
        fetched = self._fetched.fetch()
        read = fetched[written:]

        def update(place, state):
            values, sums, ahead = state
            batch, ahead = batches.take(ahead, number + tf.cast(place, tf.int64), end)
            values, more = self._update([*values, *read], batch)
            return values, worker_metric_sums.add(self._step, sums, more), ahead

        start = fetched[:written], worker_metric_sums.zeros(self._step), ahead
        values, sums, ahead = keras.ops.fori_loop(0, n, update, start)
        before, after = fetched[: self._added], values[: self._added]
        news = [b - a for a, b in zip(before, after, strict=True)] + values[self._added :]
        sent = self._written.send(news)

        def apply():
            for number, (variable, new) in enumerate(
                zip(self._written.variables, self._written.unpack(sent), strict=True)
            ):
                (variable.value.assign_add if number < self._added else variable.value.assign)(new)

        self._counter.apply(apply, sent, n, token)
        return sums, ahead

    def _update(self, values, batch):
        """One update of `values`; returns the new values and the metric sums."""
        optimizer = self._step.model.optimizer
        overlay = OverlayScope(zip(self._fetched.variables, values, strict=True), ())
        with overlay as scope, reads_noted(values[: len(self._weights)]) as hidden:
            gradients, sums = self._step.gradients(batch, None)
        for number in hidden:
            raise _no_copy_of(self._weights[number])
        known = {id(v) for v in self._fetched.variables}
        if unknown := [v.path for v, _ in scope.written() if id(v) not in known]:
            raise ValueError(
                f"with local_steps a step changes what the model holds, and this one changes {unknown[0]}: give random "
                "functions a keras.random.SeedGenerator that the layer holds, or leave local_steps out"
            )
        trained = [(v, scope.value(v)) for v in self._fetched.variables]
        with keras.StatelessScope(trained) as updated, on_tensors(optimizer):
            optimizer.apply(gradients, self._weights)
        return [updated.get_current_value(v) for v in self._written.variables], sums


def _no_copy_of(weight: keras.Variable) -> UsageError:
    return UsageError(
        f"local_steps: {weight.path} is used in a function of the model's own (a tf.function, or tf.recompute_grad) "
        "that would read the servers' weights and not the worker's copy; leave local_steps out, or write it without"
    )
