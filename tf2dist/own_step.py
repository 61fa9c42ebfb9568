"""Models that say themselves what a step is: they override `train_step` or `test_step`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf2dist import peers, shares
from tf2dist.step import Outputs, Steps

_OVERRIDES = ("train_step", "test_step")


def own_step(model: keras.Model) -> str | None:
    """The first of Keras's step methods that the model's class overrides."""
    changed = (name for name in _OVERRIDES if getattr(type(model), name) is not getattr(keras.Model, name))
    return next(changed, None)


class OwnSteps(Steps):
    """The model's own steps, run on strategies whose replicas train in lockstep.

    Metrics stay in the model's variables, which Keras sums over the replicas when they are read. Logs that are no
    metrics are those of the last step, a mean over the replicas, as `keras.Model.fit` has them.
    """

    def __init__(self, model: keras.Model):
        Outputs.__init__(self, model)
        self._names: list[str] = []

    def begin(self) -> None:
        """Begins new sums, in the model's metrics."""
        self.model.reset_metrics()

    def zeros(self) -> list[tf.Tensor]:
        """The totals of no steps."""
        return [tf.zeros([])]

    def train(self, batch, share=None) -> list[tf.Tensor]:
        """The model's `train_step`; returns the values of its logs. Arguments as for `Steps.train`."""
        return self._run(self.model.train_step, batch, share)

    def evaluate(self, batch, share=None) -> list[tf.Tensor]:
        """The model's `test_step`; returns the values of its logs."""
        return self._run(self.model.test_step, batch, share)

    def _run(self, step, batch, share):
        with shares.of_the_global_batch(share, collective=True):
            logs = step(batch)
        if not isinstance(logs, dict):
            raise ValueError(f"{step.__name__} of {type(self.model).__name__} must return a dict, found {logs!r}")
        logs = _flat(logs)
        self._names = list(logs)
        each = peers.of(tf.distribute.get_strategy())[0] / tf.distribute.get_strategy().num_replicas_in_sync
        loss = logs.get("loss", tf.zeros([]))
        return [each * tf.cast(t, tf.float32) for t in (loss, *logs.values())]

    def loop(self, step, n) -> list[tf.Tensor]:
        """The logs of the last of `n` i32[] calls of `step()`. In a graph."""
        last = step()
        for _ in tf.range(n - 1):
            last = step()
        return last

    @staticmethod
    def combine(totals, more) -> list:
        """Of two executions, the later one's logs."""
        return more

    def result(self, totals: list[np.ndarray]) -> dict[str, Any]:
        """The model's metrics, if its logs are those, else its last logs."""
        metrics = self.model.get_metrics_result()
        if set(self._names) == set(metrics):
            return {name: float(value) for name, value in metrics.items()}
        return dict(zip(self._names, map(float, totals[1:]), strict=False))


def _flat(logs: dict) -> dict:
    """Without dictionaries inside of it, as Keras makes logs: a metric may have several results."""
    flat = {}
    for name, value in logs.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat
