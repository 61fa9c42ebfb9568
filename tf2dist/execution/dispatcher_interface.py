"""The interface between the loops and whoever runs steps for them: this process, or remote workers.

An *execution* is one call of a `tf.function` that runs many steps, because what lies between two calls (Python, or
a message to a worker) costs more than a small step does. The number of steps is an argument of the function, so
one trace serves every length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tf2dist.execution.predict_step import PredictStep
from tf2dist.execution.train_step_interface import TrainStep
from tf2dist.input.data_adapter import DataAdapter, FiniteDataAdapter


@dataclass(frozen=True)
class ExecutionResult:
    """What one execution of training steps returned.

    Attributes:
      steps: how many it made; 0 if its worker died, and they have to be made again.
      sums: metric sums; None if the worker died after its last step and before they were fetched.
      seconds: how long it took its worker.
      dropped_gradients: those that came too late for a synchronous update; None where none can.
      given_back: steps that it was to make and leaves to another execution, since it took too long.
    """

    steps: int
    sums: list[np.ndarray] | None
    seconds: float
    dropped_gradients: int | None = None
    given_back: int = 0


@dataclass(frozen=True)
class CountsOnServers:
    """The variables on one parameter server that say how far a training is.

    Attributes:
      updates: i64[], as `Dispatcher.global_step`.
      under_way: i64[], updates that were begun and did not end, as far as servers know.
      tokens: i64[n], counts of fencing tokens, without which no update is made; None where none are used.
      followers: an optimizer's own counts, anywhere, which go up with `updates`.
    """

    updates: tf.Variable
    under_way: tf.Variable
    tokens: tf.Variable | None
    followers: Sequence[tf.Variable]


class Dispatcher(Protocol):
    """Runs executions, or schedules them on workers. It makes exactly as many updates as its caller asks for."""

    workers: int
    """Executions that run at the same time; of those that are scheduled, the others wait."""

    @property
    def max_in_flight(self) -> int:
        """Executions that may be scheduled before the first result is asked for; other numbers at other times."""
        ...

    @property
    def global_step(self) -> int:
        """Updates that were applied, counted from the beginning of the data (`start` of `open_stream` included)."""
        ...

    def counts_on_servers(self, step: TrainStep) -> CountsOnServers | None:
        """Where the updates that `step` makes are counted.

        None if this process counts them, or if nobody could tell whether one is made in part when this process is lost.
        """
        ...

    @property
    def asked_to_stop(self) -> bool:
        """Is the training to save and to end? Processes that run it in lockstep know it after the same execution."""
        ...

    def compile(self, step: TrainStep) -> Any:
        """Makes an execution of training steps, for `schedule`."""
        ...

    def open_stream(self, data: DataAdapter, start: int, stop: int | None = None) -> Any:
        """Opens endless training batches from step `start` on, for `schedule`; sets `global_step` to `start`.

        Args:
          data: where they come from.
          start: the first step.
          stop: the step that will not be made; so much is read, and no more, where what is read matters to later calls.
        """
        ...

    @property
    def has_gaps(self) -> bool:
        """Are there batches to be made again, before others of which updates were made? They are scheduled first."""
        ...

    @property
    def unused_batches(self) -> int:
        """How many batches of data that this process reads were read and not used; they are used before others."""
        ...

    def schedule(self, execution: Any, stream: Any, steps: int, seconds: float = math.inf) -> int:
        """Runs up to `steps` steps, or schedules them if fewer than `max_in_flight` executions are under way.

        Args:
          seconds: after which a worker begins no further step, and gives back those that it has not made.

        Returns:
          How many: fewer where some are to be made again, or where their batches are sent, and would be too much
          together, or are not alike.
        """
        ...

    def next_result(self) -> ExecutionResult:
        """Waits until one of the executions is over whose results were not fetched yet, whichever is first."""
        ...

    def evaluate(
        self, step: TrainStep, data: FiniteDataAdapter, *, one_by_one: bool = False
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yields the metric sums of batches of one pass over `data`, and of how many batches they are.

        Args:
          one_by_one: yield the sums of each batch, in order?
        """
        ...

    def predict(self, step: PredictStep, data: FiniteDataAdapter) -> Iterator[Any]:
        """Yields the outputs for each batch of one pass over `data`, in order: nested arrays f[b, ...]."""
        ...

    def cancel(self) -> None:
        """Ends what is under way, after the last execution or an error."""
        ...
