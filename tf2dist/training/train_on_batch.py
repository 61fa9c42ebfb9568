"""Updates of a model one at a time, for programs with a loop of their own."""

# Keras ships no types.
# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass
from typing import Any

import keras

from tf2dist.compat import versions
from tf2dist.errors import UsageError
from tf2dist.input.batch_format import common_spec, in_words, spec_of, standardized
from tf2dist.input.given_batches import GivenBatches
from tf2dist.input.keras_arguments import as_data
from tf2dist.parameter_server.options import ParameterServer
from tf2dist.runtime import session
from tf2dist.training import data_validation, model_validation
from tf2dist.training.metric_sums import MetricSums
from tf2dist.training.prepared_model import PreparedModel, prepare

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
      data: what takes the batches.
      stream: as the dispatcher has opened it.
    """

    prepared: PreparedModel
    number: int
    data: GivenBatches
    stream: Any


class TrainOnBatch:
    """Trains a model on one global batch a call; see `step`."""

    def __init__(self, model: keras.Model, options: ParameterServer | None):
        self._model, self._options = model, options
        self._spec: Any = None  # of all batches so far
        self._steps = 0
        self._open: list[_Open] = []  # one, or none
        # TensorFlow would look for Python when that has ended.
        weakref.finalize(self, _close, self._open)

    def __call__(self, x: Any, y: Any = None, sample_weight: Any = None) -> dict[str, Any]:
        """Makes one update.

        Args:
          x, y, sample_weight: arrays, or lists or dictionaries of them, with a row for each example of the global
            batch; or, as `x` alone, a tuple `(x, y)` or `(x, y, sample_weight)`. In a multi-worker job give all peers
            the same batch: each takes its slice. The number of rows may differ between calls.

        Returns:
          The loss and the metrics by name, of this batch alone.

        Raises:
          ValueError: the model cannot be trained on its strategy, or the batch is not like those before it.
        """
        with session.current().call():
            if session.current().is_evaluator:
                raise UsageError("an evaluator does not train: tf2dist.step is for the other tasks of the job")
            prepared = prepare(self._model, self._options)
            batch = standardized(as_data(x, y, sample_weight), _NAME)
            try:
                stream = self._stream_of(prepared, spec_of(batch))
                stream.data.give(batch)
                return self._make_update(stream)
            except BaseException:
                _close(self._open)
                with contextlib.suppress(Exception):  # this error says more
                    prepared.dispatcher.cancel()
                raise

    def _stream_of(self, prepared: PreparedModel, found: Any) -> _Open:
        """Returns the stream that the next batch, of the spec `found`, is given to: the open one where it can be."""
        try:
            spec = common_spec([found] if self._spec is None else [self._spec, found], _NAME)
        except UsageError:
            raise UsageError(
                f"{_NAME}: a batch is not as those before it: expected {in_words(self._spec)}, found {in_words(found)}"
            ) from None
        for known in self._open:
            if known.prepared is prepared and known.number == prepared.streams_opened and spec == self._spec:
                return known
        _close(self._open)
        data, self._spec = GivenBatches(spec), spec
        prepared.train_step(data)
        stream = prepared.open_stream(data, self._steps)
        self._open.append(_Open(prepared, prepared.streams_opened, data, stream))
        return self._open[0]

    def _make_update(self, open_stream: _Open) -> dict[str, Any]:
        """Trains on the batch that was given; returns its logs."""
        prepared, data = open_stream.prepared, open_stream.data
        dispatcher, progress = prepared.dispatcher, session.current().progress
        sums, end = MetricSums(prepared.train_step(data)), dispatcher.global_step + 1
        while dispatcher.global_step < end:  # a worker that is lost has made the update, or not
            with data_validation.data_may_fail(data), progress.steps():
                dispatcher.schedule(prepared.train_function, open_stream.stream, 1)
                result = dispatcher.next_result()
            if result.sums is not None:
                sums.add(result.sums)
        self._steps += 1
        progress.made()
        session.current().report_step(self._steps)
        return sums.logs()


def _close(streams: list[_Open]) -> None:
    for each in streams:
        each.data.close()
    streams.clear()
