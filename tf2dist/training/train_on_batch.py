"""Updates of a model one at a time, for programs with a loop of their own."""

# Keras ships no types.
# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import atexit
import contextlib
import logging
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tf2dist.compat import versions
from tf2dist.compat.strategy_scope import outside_of_scopes
from tf2dist.errors import UsageError
from tf2dist.execution.train_step_interface import TrainStep
from tf2dist.input.array_adapter import as_keras_passes
from tf2dist.input.batch_format import as_dtypes, check_rows, common_spec, in_words, spec_of, standardized
from tf2dist.input.class_weight import ClassWeight
from tf2dist.input.given_batches import GivenBatches
from tf2dist.input.keras_arguments import as_data
from tf2dist.parameter_server.options import ParameterServer
from tf2dist.runtime import session
from tf2dist.training import data_validation, model_validation
from tf2dist.training.metric_sums import MetricSums
from tf2dist.training.prepared_model import PreparedModel, prepare

_log = logging.getLogger("tf2dist")

_NAME = "tf2dist.step"


def step(model: keras.Model, parameter_server: ParameterServer | None = None) -> TrainOnBatch:
    """Makes a function that trains a compiled model on one global batch, on the model's strategy.

    As `keras.Model.train_on_batch` with `return_dict=True`, for a loop of your own::

        step = tf2dist.step(model)
        for x, y in batches:
            logs = step(x, y)

    Args:
      model: compiled. One that was made outside of `strategy.scope()` is moved into it, with its state.
      parameter_server: for a parameter server strategy: how workers make an update. One worker after the other makes
        them, since a call returns when its update was made; with `update="sync"` all of them make it together.

    Raises:
      ValueError: the model is not compiled.
    """
    versions.warn_if_untried()
    model_validation.check_compiled(model)
    return TrainOnBatch(model, parameter_server)


@dataclass
class _Open:
    """A stream of batches that are given one by one.

    Attributes:
      prepared: the model that it was opened for.
      number: of the stream among those.
      spec: of the batches.
      data: what takes them.
      stream: as the dispatcher has opened it.
      step: what is made with each.
    """

    prepared: PreparedModel
    number: int
    spec: Any
    data: GivenBatches
    stream: Any
    step: TrainStep


class TrainOnBatch:
    """Trains a model on one global batch a call; see `step`."""

    def __init__(self, model: keras.Model, options: ParameterServer | None):
        self._model, self._options = model, options
        self._specs: dict[bool, Any] = {}  # of all batches so far: of those with weights, and of those without
        self._steps = 0
        self._open: _Open | None = None
        _made.add(self)

    def __call__(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Mapping[int, float] | None = None
    ) -> dict[str, Any]:
        """Makes one update.

        Args:
          x, y, sample_weight: arrays, or lists or dictionaries of them, with a row for each example of the global
            batch; or, as `x` alone, a tuple `(x, y)` or `(x, y, sample_weight)`. In a multi-worker job give all peers
            the same batches, and as many: each takes its slice, and one that makes a call alone waits for the others.
            Nothing checks that they are the same. The number of rows may differ between calls.
          class_weight: weight of each class's examples, as for `fit`; it multiplies `sample_weight`.

        Returns:
          The loss and the metrics by name, of this batch alone. Where a worker was lost that has made the update and
          not told what it measured, they are those of no batch, and a warning is logged.

        Raises:
          ValueError: the model cannot be trained on its strategy, the batch is not like those before it, or this is
            called in a callback of `fit` on the same model.
        """
        with session.current().call(), outside_of_scopes():
            if session.current().is_evaluator:
                raise UsageError("an evaluator does not train: tf2dist.step is for the other tasks of the job")
            prepared = prepare(self._model, self._options)
            if prepared.in_fit:
                raise UsageError("tf2dist.step trains a model that fit is training: call it before or after fit")
            given = as_data(
                (x,) if isinstance(x, list) and y is None and sample_weight is None else x, y, sample_weight
            )
            batch = standardized(given, _NAME)
            check_rows(batch if isinstance(batch, tuple) else (batch,))
            batch = as_keras_passes(_weighted(batch, class_weight))
            try:
                has_weights = isinstance(batch, tuple) and len(batch) == 3
                before = self._specs.get(has_weights)
                batch = batch if before is None else as_dtypes(before, batch)
                stream = self._stream_of(prepared, before, spec_of(batch))
                stream.data.give(batch)
                logs = self._make_update(stream, batch)
                self._specs[has_weights] = stream.spec
                return logs
            except BaseException:
                self.close()
                with contextlib.suppress(Exception):  # this error says more
                    prepared.dispatcher.cancel()
                raise

    def _stream_of(self, prepared: PreparedModel, before: Any, found: Any) -> _Open:
        """Returns the stream that the next batch, of the spec `found`, is given to: the open one where it can be."""
        try:
            spec = common_spec([found] if before is None else [before, found], _NAME)
        except UsageError:
            raise UsageError(
                f"{_NAME}: a batch is not as those before it: expected {in_words(before)}, found {in_words(found)}; "
                "tf2dist.step(model) makes another function for it"
            ) from None
        known = self._open
        if known and known.prepared is prepared and known.number == prepared.streams_opened and known.spec == spec:
            return known
        self.close()
        data = GivenBatches(spec)
        step = prepared.train_step(data)
        stream = prepared.open_stream(data, self._steps)
        self._open = _Open(prepared, prepared.streams_opened, spec, data, stream, step)
        return self._open

    def _make_update(self, stream: _Open, batch: Any) -> dict[str, Any]:
        """Trains on the batch that was given; returns its logs."""
        dispatcher, progress = stream.prepared.dispatcher, session.current().progress
        sums, end, is_lost = MetricSums(stream.step), dispatcher.global_step + 1, True
        while dispatcher.global_step < end:  # a worker that is lost has made it, or not
            with data_validation.data_may_fail(stream.data), progress.steps():
                dispatcher.schedule(stream.prepared.train_function, stream.stream, 1)
                result = dispatcher.next_result()
            if dispatcher.global_step < end and not dispatcher.unused_batches:
                stream.data.give(batch)  # what was read of it is lost with the worker
            if result.sums is not None:
                sums.add(result.sums)
                is_lost = False
        dispatcher.cancel()  # workers of synchronous servers would wait for the next one, and do nothing else
        self._steps += 1
        progress.made()
        session.current().report_step(self._steps)
        if is_lost:
            _log.warning("update %d was made by a worker that was lost, and its loss and metrics with it", self._steps)
        return sums.logs()

    def __del__(self) -> None:
        self.close()  # a thread may wait for the next batch

    def close(self) -> None:
        """Ends what reads the batches; the next call begins it anew."""
        if self._open is not None:
            self._open.data.close()
            self._open = None


def _weighted(batch: Any, class_weight: Mapping[int, float] | None) -> Any:
    """The batch with weights for its classes, if there are any; of arrays."""
    if not class_weight:
        return batch
    x, *others = batch if isinstance(batch, tuple) else (batch,)
    weights = ClassWeight.of(class_weight)(x, *tf.nest.map_structure(tf.convert_to_tensor, others))[2]
    return x, others[0], weights.numpy()


_made: weakref.WeakSet[TrainOnBatch] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Frees what TensorFlow would free when Python has ended, which it says on standard error."""
    for each in list(_made):
        each.close()
