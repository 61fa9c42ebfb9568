"""A model made ready to run on its strategy: built, traced, and kept for the next call."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat import model as keras_model
from tf2dist.compat.atomic_counter import add_atomically, count_atomically
from tf2dist.compat.stateless_scope import compute_output_spec
from tf2dist.errors import UsageError
from tf2dist.execution.custom_step_with_sums import CustomStepWithSums
from tf2dist.execution.custom_train_step import CustomTrainStep
from tf2dist.execution.keras_train_step import KerasTrainStep
from tf2dist.execution.predict_step import PredictStep
from tf2dist.execution.steps_per_execution import StepsPerExecutionTuner
from tf2dist.execution.train_step_interface import TrainStep
from tf2dist.input.data_adapter import DataAdapter, FiniteDataAdapter
from tf2dist.parameter_server.options import ParameterServer
from tf2dist.runtime import session
from tf2dist.training import data_validation, loss_validation, metric_validation, model_validation, step_trial
from tf2dist.training.callbacks import needs_batch_logs
from tf2dist.training.choose_dispatcher import choose_dispatcher
from tf2dist.training.metric_sums import MetricSums
from tf2dist.training.model_in_scope import move_into_scope

_Result = TypeVar("_Result")
_PREPARED = "_tf2dist_prepared"  # the model's attribute, so that it is forgotten with the model


def prepare(model: keras.Model, options: ParameterServer | None = None) -> PreparedModel:
    """Prepares a model, or returns what an earlier call has prepared if the model was not compiled anew since.

    Args:
      options: how workers make updates; None for those of the earlier call, or the default.

    Raises:
      ValueError: the model cannot be trained on its strategy.
    """
    move_into_scope(model)
    known = vars(model).get(_PREPARED)
    if known is not None and known.is_current() and options in (None, known.options):
        return known
    options = options or (known.options if known else ParameterServer())
    prepared = vars(model)[_PREPARED] = PreparedModel(model, options)
    return prepared


def _generation() -> int:
    """How often parameter servers of this job were replaced."""
    servers = session.current().servers
    return servers.generation if servers is not None else 0


def cancel(model: keras.Model) -> None:
    """Ends what runs of a model that was prepared, and waits for its end."""
    if known := vars(model).get(_PREPARED):
        known.dispatcher.cancel()


def forget(model: keras.Model) -> None:
    """Forgets what was prepared of a model: its variables are others now."""
    vars(model).pop(_PREPARED, None)


class PreparedModel:
    """A model with its dispatcher, its step and their traces, kept until it is compiled anew.

    Attributes:
      model, options: what it was made for.
      strategy: in whose scope the model was made, or moved.
      dispatcher: who runs its steps.
      streams_opened: how many; each ends the one before.
      in_fit: is a call of `fit` under way?
    """

    def __init__(self, model: keras.Model, options: ParameterServer):
        model_validation.check_before_building(model, options)
        model_validation.check_options(model, options)
        self.model, self.options = model, options
        self._identity = keras_model.compile_identity(model)
        self._generation = _generation()
        self.strategy = model.distribute_strategy
        self.dispatcher = choose_dispatcher(self.strategy, options)
        self._tuner = StepsPerExecutionTuner()
        self._step: KerasTrainStep | None = None
        # By the methods of the model, whose logs differ.
        self._custom_steps: dict[str, CustomTrainStep | CustomStepWithSums] = {}
        self.streams_opened = 0
        self.in_fit = False
        self._checked: list = []  # names of steps with specs of data that they were found to take
        self._tried: list = []  # the same, of those of Keras that were tried on slices of a batch

    def is_current(self) -> bool:
        """Whether the model is still the one that was prepared, not compiled again since, on the same servers."""
        now = keras_model.compile_identity(self.model)
        return self._generation == _generation() and all(a is b for a, b in zip(self._identity, now, strict=True))

    def build(self, data: DataAdapter, step: str = "train_step") -> None:
        """Makes every variable, and checks that a step of the model can take this data.

        Args:
          step: the name of Keras's method that will run: "train_step", "test_step" or "predict_step".

        Raises:
          ValueError: it cannot.
        """
        spec = data.element_spec()
        if (step, spec) in self._checked:
            return
        batch = tf.nest.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), spec)
        with self.strategy.scope():
            if step == "predict_step":
                compute_output_spec(self.model.predict_step, batch)
            elif not keras_model.overridden_step(self.model):
                if self.strategy.num_replicas_in_sync > 1:  # where Keras cannot even build what adds such a state up
                    given = [*keras_model.metrics_given_to_compile(self.model), *keras_model.all_metrics(self.model)]
                    metric_validation.check_states_are_numbers(given)
                _build(self.model, batch)
            own = step != "predict_step" and keras_model.custom_step(self.model, batch)
            if own:
                model_validation.check_custom_step(self.model, own, self.options)
                self._custom_steps.setdefault(step, _custom_step(self.model)).build(step, batch)
        model_validation.check_after_building(self.model)
        custom = self._custom_steps.get(step)
        if own and isinstance(custom, CustomStepWithSums):
            model_validation.check_optimizers_of_custom_step(self.model, custom.optimizers)
            for optimizer in custom.optimizers:
                count_atomically(optimizer)
            if isinstance(self.strategy, tf.distribute.ParameterServerStrategy):
                add_atomically(self.model.variables)  # a step may keep counts of its own
        several = self.strategy.num_replicas_in_sync > 1
        if own and custom and (several or isinstance(custom, CustomStepWithSums)):
            metric_validation.check_metrics_of_custom_step(custom, step, spec)
        if step == "predict_step" and several and keras_model.has_parts_of_others(self.model):
            step_trial.check_predictions(self.model, spec)
        if own and custom and several:
            step_trial.check(custom, step, spec)
        if not own and step != "predict_step":
            self._check_metrics(step, batch, spec)
            if loss_validation.slices_of_update(self.strategy, self.options) > 1:
                metric_validation.check_metrics_of_slices(self.model, spec)
        self._checked.append((step, spec))

    def _check_metrics(self, step: str, batch, spec) -> None:
        """Raises ValueError for metrics whose states do not add up, where several replicas or workers update them.

        On one device Keras's own steps, which update metrics in their variables, run as if they were the user's. So
        they do with a `compute_metrics` of the user's, which may write and read whatever it likes.
        """
        if self.strategy.num_replicas_in_sync > 1 or isinstance(self.strategy, model_validation.VARIABLES_ELSEWHERE):
            model_validation.check_parts_of_step(self.model)
            metric_validation.check_metrics(self.model, spec)
            return
        if not keras_model.overrides_part_of_step(self.model) and not keras_model.overrides_compute_metrics(self.model):
            with contextlib.suppress(UsageError):
                metric_validation.check_metrics(self.model, spec)
                return
        with self.strategy.scope():
            self._custom_steps.setdefault(step, CustomTrainStep(self.model)).build(step, batch)
        if step == "train_step":
            vars(self).pop("train_function", None)  # of Keras's step, on data for which the metrics showed nothing

    def train_step(self, data: DataAdapter, step: str = "train_step") -> TrainStep:
        """The model's train step, after building the model for this data; `step` as for `build`."""
        self.build(data, step)
        if step in self._custom_steps:
            return self._custom_steps[step]
        if self._step is None:
            self._step = KerasTrainStep(self.model)
            if isinstance(self.strategy, tf.distribute.ParameterServerStrategy):
                count_atomically(self.model.optimizer)
        self._try_slices(self._step, step, data.element_spec())
        return self._step

    def _try_slices(self, step: KerasTrainStep, method: str, spec) -> None:
        """Raises an error if what the model computes on slices of a batch is not what it computes on the whole."""
        if loss_validation.slices_of_update(self.strategy, self.options) == 1 or (method, spec) in self._tried:
            return
        sums = set(step.summed_layer_losses)
        if all(spec != tried for _, tried in self._tried):
            loss_validation.check_loss(step, spec, self.options)
        on_servers = isinstance(self.strategy, tf.distribute.ParameterServerStrategy)
        if not on_servers and keras_model.has_parts_of_others(self.model):
            step_trial.check_keras_step(step, method, spec)
        if self._tried and step.summed_layer_losses != sums:  # there may be traces without these
            self._step = KerasTrainStep(self.model)
            self._step.summed_layer_losses |= step.summed_layer_losses
            vars(self).pop("train_function", None)
        self._tried.append((method, spec))

    @functools.cached_property
    def train_function(self) -> Any:
        """An execution of training steps, for the dispatcher. `train_step` must have been called."""
        step = self._custom_steps.get("train_step", self._step)
        assert step is not None
        return self.dispatcher.compile(step)

    def open_stream(self, data: DataAdapter, start: int, stop: int | None = None) -> Any:
        """See `Dispatcher`."""
        self.streams_opened += 1
        return self.dispatcher.open_stream(data, start, stop)

    def tuner(self, steps_per_execution: int | None) -> StepsPerExecutionTuner:
        """The tuner of earlier calls of `fit`, or one that always chooses the given number."""
        return self._tuner if steps_per_execution is None else StepsPerExecutionTuner(steps_per_execution)

    @contextlib.contextmanager
    def _one_pass(self, data: FiniteDataAdapter) -> Iterator[None]:
        """Begins and ends one pass over the data, and closes it after an error."""
        data.begin_epoch()
        try:
            with data_validation.data_may_fail(data):
                yield
        finally:
            data.close()
        data.end_epoch()

    def evaluate(
        self, data: FiniteDataAdapter, callbacks: keras.callbacks.CallbackList, *, one_by_one: bool = False
    ) -> dict[str, Any]:
        """Loss and metrics over every example of `data`; `one_by_one`: callbacks see each batch."""
        logs = self.validate(data, callbacks, one_by_one=one_by_one, may_stop=False)
        assert logs is not None
        return logs

    def validate(
        self,
        data: FiniteDataAdapter,
        callbacks: keras.callbacks.CallbackList,
        *,
        one_by_one: bool = False,
        may_stop: bool = True,
    ) -> dict[str, Any] | None:
        """As `evaluate`; None if the training that it is part of was asked to stop meanwhile, and may."""
        step = self.train_step(data, "test_step")
        self.model.stop_evaluating = False
        callbacks.on_test_begin()
        sums, wanted = MetricSums(step), needs_batch_logs(self.strategy, callbacks, "evaluation")
        batches = 0
        data.end_epoch()  # as Keras does before training and evaluation, and not before prediction
        session.current().progress.compiles()
        with self._one_pass(data):
            results = self.dispatcher.evaluate(step, data, one_by_one=one_by_one)
            begin = callbacks.on_test_batch_begin
            for more, their_sums in _announced(session.current().progress.steps_of(results), data.steps, begin):
                sums.add(their_sums)
                batches += more
                callbacks.on_test_batch_end(batches - 1, sums.logs() if wanted else None)
                if may_stop and self.dispatcher.asked_to_stop:
                    return None
                if self.model.stop_evaluating:
                    break
        logs = sums.logs()
        sums.set_metrics(self.strategy)
        callbacks.on_test_end(logs)
        return logs

    def predict(self, data: FiniteDataAdapter, callbacks: keras.callbacks.CallbackList) -> Any:
        """The outputs for every example of `data`, in its order: nested arrays f[n, ...].

        An output with unlike shapes in different batches is a `tf.RaggedTensor`, as in Keras.
        """
        self.build(data, "predict_step")
        self.model.stop_predicting = False
        callbacks.on_predict_begin()
        batches = []
        with self._one_pass(data):
            results = self.dispatcher.predict(PredictStep(self.model), data)
            outputs_of = ((1, outputs) for outputs in session.current().progress.steps_of(results))
            announced = _announced(outputs_of, data.steps, callbacks.on_predict_batch_begin)
            for number, (_, outputs) in enumerate(announced):
                batches.append(outputs)
                callbacks.on_predict_batch_end(number, {"outputs": outputs})
                if self.model.stop_predicting:
                    break
        callbacks.on_predict_end()
        return tf.nest.map_structure(lambda *arrays: _joined(arrays), *batches)


def _custom_step(model: keras.Model) -> CustomTrainStep | CustomStepWithSums:
    shares_variables = isinstance(model.distribute_strategy, model_validation.VARIABLES_ELSEWHERE)
    return CustomStepWithSums(model) if shares_variables else CustomTrainStep(model)


def _announced(
    results: Iterable[tuple[int, _Result]], batches: int | None, begin: Callable[[int], None]
) -> Iterator[tuple[int, _Result]]:
    """Yields results, and calls `begin` with the number of the first batch of each before that is computed.

    As in Keras, it is called once more at the end where nobody knows how many batches there are.

    Args:
      results: how many batches each is of, and what came of them.
      batches: how many there are; None if that is not known.
    """
    done, results = 0, iter(results)
    while True:
        known = batches is None or done < batches
        if known:
            begin(done)
        found = next(results, None)
        if found is None:
            return
        if not known:
            begin(done)
        yield found
        done += found[0]


def _joined(arrays: Sequence[np.ndarray]) -> Any:
    """The rows of arrays f[n, ...]; a `tf.RaggedTensor` where dimensions other than the first differ."""
    unlike = [d for d, sizes in enumerate(zip(*[a.shape[1:] for a in arrays], strict=True), 1) if len(set(sizes)) > 1]
    if not unlike:
        return np.concatenate(arrays)
    ragged: Any = tf.RaggedTensor
    return tf.concat([ragged.from_tensor(a, ragged_rank=unlike[-1]) for a in arrays], 0)


def _build(model: keras.Model, batch) -> None:
    """Makes every variable (weights, optimizer slots, metrics) before a function is traced.

    Under a strategy with workers a variable that is made while tracing would end up on a worker. Keras raises
    ValueError here for inputs and labels whose shapes the model and its loss cannot take.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    y_pred = compute_output_spec(model, x, training=False)
    if y is not None:
        keras_model.build_from_specs(model, batch)
        keras_model.check_loss_spec(model, x, y, y_pred, sample_weight)
    elif keras_model.has_compiled_loss(model):
        model_validation.check_loss_without_targets(model, x, y_pred)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
