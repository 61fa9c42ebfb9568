"""Checks on a few rows that a step computes the same on slices of a batch as on the whole.

Of a custom train step, and of Keras's own where parts of the model are the user's: these may compare the examples of a
batch, or keep a state of what they have seen. What a graph shows is not enough: a sum can be written in many ways. So,
before anything trains, one update is made on the replicas twice: with all rows on the first of them, while the others
have slices of weight 0, which is what one device would do; and with the rows spread as those of each batch are. Both
must change the same variables by the same, and log the same. Afterwards all is as it was.

Nothing is found out where the rows make no sense to the model, and where the step is random (but for dropout).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tf2dist.compat import captured_variables, custom_step_trace, global_batch_custom_step
from tf2dist.compat.model import is_of_keras, layers_of
from tf2dist.compat.stateless_scope import OverlayScope
from tf2dist.errors import TrainingError
from tf2dist.execution.custom_step_with_sums import CustomStepWithSums
from tf2dist.execution.custom_train_step import CustomTrainStep
from tf2dist.execution.keras_train_step import KerasTrainStep
from tf2dist.execution.metric_merges import merge
from tf2dist.input.batch_slicing import ReplicaSlices, slice_bounds
from tf2dist.runtime import collectives, devices, session
from tf2dist.training.loss_validation import computes_in_16_bits
from tf2dist.training.trial_rows import made_up

_log = logging.getLogger("tf2dist")
_SIZES = [0.1, 1.0, 0.5, 0.8, 0.3]  # of rows, over and over; rows that are alike would show nothing
_MOST_ROWS = 17
# Of Keras's own step: a trial holds copies of all weights of each replica, and of gradients. What a loss does wrong
# shows in those of any weight.
_MOST_WEIGHTS = 1 << 25
_MOST_GRADIENTS = 1 << 20  # of one weight
_MOST_INPUTS = 1 << 24  # numbers in all rows
_SEED = "seed_generator_state"


def check(step: CustomTrainStep | CustomStepWithSums, method: str, spec) -> None:
    """Raises TrainingError for a step that does not come to the same on the replicas' slices as on one device.

    Args:
      step: of a model that has all its variables, on a strategy with several replicas.
      method: "train_step" or "test_step".
      spec: of a batch.
    """
    if found := _fault(step, method, spec):
        raise TrainingError(
            f"{method} of {type(step.model).__name__} does not come to the same on parts of a batch as on the whole "
            f"({found}): what it computes, assigns and logs must be made of means or sums over examples, each of which "
            "depends on no other; or use strategy one"
        )


def check_keras_step(step: KerasTrainStep, method: str, spec) -> None:
    """As `check`, for a model without a step of its own, of which other parts are; not for one of very many weights."""
    if sum(math.prod(v.shape) for v in step.model.variables) > _MOST_WEIGHTS or _inputs(spec) > _MOST_INPUTS:
        _log.info("tf2dist: %s has too many weights or inputs to be tried on slices of a batch", step.model.name)
        return
    # A layer that writes a weight in its forward pass does so alike on all replicas.
    if found := _fault(_KerasStep(step), method, spec, only_read=step.model.trainable_variables):
        raise TrainingError(
            f"{step.model.name} does not come to the same on parts of a batch as on the whole ({found}): what its "
            "layers, losses and metrics compute and keep must be made of means or sums over examples, each of which "
            "depends on no other; or use strategy one"
        )


def _inputs(spec) -> int:
    """How many numbers rows of these specs have, a size that is not known taken for 2."""
    return _MOST_ROWS * sum(math.prod(d or 2 for d in s.shape[1:]) for s in tf.nest.flatten(spec) if s is not None)


def check_predictions(model: keras.Model, spec) -> None:
    """Raises TrainingError for a model whose output for a row depends on other rows of the batch.

    Args:
      spec: of a batch that `predict_step` takes.
    """
    if _inputs(spec) > _MOST_INPUTS:
        return
    differs = False
    with contextlib.suppress(Exception):  # the rows may make no sense to the model
        sizes = _SIZES * 2
        rows = made_up(spec, sizes)

        def outputs(*bounds: int) -> list[np.ndarray]:
            parts = []
            for begin, end in itertools.pairwise(bounds):
                with OverlayScope((), model.variables):
                    found = model.predict_step(tf.nest.map_structure(lambda t: t[begin:end], rows))  # noqa: B023
                parts.append(tf.nest.flatten(found))
            return [np.concatenate(each) for each in zip(*parts, strict=True)]

        tolerance = 5e-2 if computes_in_16_bits(model) else 1e-3
        close = functools.partial(np.allclose, rtol=tolerance, atol=tolerance / 100)
        whole, again, cut = outputs(0, len(sizes)), outputs(0, len(sizes)), outputs(0, 4, len(sizes))
        differs = all(map(close, whole, again)) and not all(map(close, whole, cut))
    if differs:
        raise TrainingError(
            f"the output of {model.name} for a row depends on other rows of its batch, of which several replicas each "
            "see a part; use strategy one"
        )


def _fault(step: _TriedStep, method: str, spec, only_read: Sequence[keras.Variable] = ()) -> str:
    """What differs; empty if nothing does. Variables that are `only_read` are not compared."""
    # What a step raises for rows that make no sense to it can be anything; training will raise what is to be seen.
    with contextlib.suppress(Exception):
        return _Trial(step, method, spec, only_read).fault()
    return ""


class _TriedStep(Protocol):
    """What is tried: `update` applies gradients by optimizers, or returns them by the paths of their variables.

    Attributes:
      log_names: of the values that an update returns behind the first one.
      metric_paths: of those behind these.
      merges: as of `TrainStep`.
    """

    model: keras.Model

    @property
    def log_names(self) -> Sequence[str]: ...

    @property
    def metric_paths(self) -> Sequence[str]: ...

    @property
    def merges(self) -> Mapping[int, str]: ...

    def update(self, batch: Any, slice_weight: tf.Tensor) -> list[tf.Tensor]: ...

    def evaluate(self, batch: Any, slice_weight: tf.Tensor) -> list[tf.Tensor]: ...

    def is_last_value(self, name: str) -> bool: ...


class _KerasStep:
    """Keras's own step, whose update returns gradients in place of applying them. A `_TriedStep`."""

    log_names: Sequence[str] = ()

    def __init__(self, step: KerasTrainStep):
        self.model = step.model
        # One of its own: what XLA has compiled here is without dropout.
        self._step = KerasTrainStep(step.model, jit=False)
        self._step.summed_layer_losses |= step.summed_layer_losses

    @property
    def metric_paths(self) -> Sequence[str]:
        return ["the loss", *self._step.metric_paths]

    @property
    def merges(self) -> Mapping[int, str]:
        return self._step.merges

    def is_last_value(self, name: str) -> bool:
        return True

    def update(self, batch, slice_weight) -> list[tf.Tensor]:
        gradients, sums = self._step.gradients(batch, slice_weight)
        weights = zip(self.model.trainable_variables, gradients, strict=True)
        # What overwrites a variable is no gradient, and the largest counts.
        known = [
            (w.path, g)
            for w, g in weights
            if g is not None and not w.overwrite_with_gradient and math.prod(w.shape) <= _MOST_GRADIENTS
        ]
        dense = [tf.convert_to_tensor(gradient) for _, gradient in known]
        if dense:
            dense = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, dense)
        global_batch_custom_step.note_applied(list(zip([path for path, _ in known], dense, strict=True)))
        return _examples_first(sums)

    def evaluate(self, batch, slice_weight) -> list[tf.Tensor]:
        return _examples_first(self._step.evaluate(batch, slice_weight))

    def alone(self, batch_spec) -> Any:
        """A concrete function of a batch that does all of it in this process, without any other."""

        @tf.function(autograph=False)
        def run(batch):
            fractions, sums = self._step.fractions(batch, tf.ones([]))
            return [tf.convert_to_tensor(g) for f in fractions for g in f.gradients if g is not None], sums

        return run.get_concrete_function(batch_spec)


def _examples_first(sums: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    loss, examples, *others = sums
    return [examples, loss, *others]


@dataclass
class _Outcome:
    """The results of one trial update.

    Attributes:
      gradients: of each replica of this process: what optimizers were to apply.
      copies: of each variable: what the replicas of this process hold of it.
      totals: of all processes: logs, and variables that are sums over the replicas.
    """

    gradients: list[list[np.ndarray]]
    copies: list[list[np.ndarray]]
    totals: list[np.ndarray]


class _Trial:
    def __init__(self, step: _TriedStep, method: str, spec, only_read: Sequence[keras.Variable] = ()):
        self._step, self._model = step, step.model
        self._strategy = strategy = step.model.distribute_strategy
        self._peers, self._rank = collectives.peers(strategy)
        replicas = strategy.num_replicas_in_sync // self._peers
        self._slices = ReplicaSlices(self._rank * replicas, replicas, strategy.num_replicas_in_sync)
        sizes = (_SIZES * _MOST_ROWS)[: min(4 * self._slices.total + 1, _MOST_ROWS)]
        self._batch, self._rows = made_up(spec, sizes), len(sizes)
        self._method = method
        self._paths: list[str] = []  # of variables whose gradients optimizers apply; empty ones after each call
        self._values = 0  # loss and logs
        # GPUs may multiply float32 with 10 bits, and choose another way for another number of rows.
        self._rtol = 5e-2 if computes_in_16_bits(self._model) else 1e-2 if devices.on_accelerators(strategy) else 2e-3
        self._small = 1e-2 if computes_in_16_bits(self._model) else 1e-5
        with _synchronized(self._model), _without_dropout(self._model):
            self._function = self._traced(step.update if method == "train_step" else step.evaluate)
        self._progress = session.current().progress
        self._progress.moves()
        held = {id(handle) for handle in self._function.captured_inputs}
        left_out = {id(v.value) for v in only_read}
        known = [(path, v, strategy.experimental_local_results(v)) for path, v in _variables(self._model).items()]
        self._known = [
            (path, v, parts)
            for path, v, parts in known
            if id(v) not in left_out
            and self._is_known(v, parts, replicas)
            and any(id(part.handle) in held for part in parts)
        ]

    def _is_known(self, variable, parts: Sequence, replicas: int) -> bool:
        """Is this a variable of the strategy's, of which each replica has a copy, or all have one?"""
        if isinstance(self._strategy, tf.distribute.experimental.CentralStorageStrategy):
            return self._strategy.extended.variable_created_in_scope(variable)
        return len(parts) == replicas and variable is not parts[0]

    def _traced(self, function: Callable) -> Any:
        def on_replica(batch, weight):
            # A `tf.function` of the user's would keep what it has traced, and training is to have dropout.
            with global_batch_custom_step.functions_inlined(), global_batch_custom_step.trying() as applied:
                values = function(batch, weight)
            self._paths, self._values = [path for path, _ in applied], len(values)
            return [*values, *(gradient for _, gradient in applied)]

        def of_this_replica(elements):
            rank = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            return on_replica(*elements[rank - self._slices.first])

        @tf.function(autograph=False)
        def run(elements):
            results = self._strategy.run(of_this_replica, args=(elements,))
            return [self._strategy.experimental_local_results(r) for r in results]

        element = tf.nest.map_structure(_of_any_size, self._batch), tf.TensorSpec([], tf.float32)
        return run.get_concrete_function((element,) * self._slices.count)

    def fault(self) -> str:
        """Returns what differs between the two updates; empty if nothing does, or if the trial says nothing."""
        # Two runs of what is random may be alike by accident.
        is_random = isinstance(self._step, _KerasStep) and _has_random_operations(self._function.graph)
        if is_random or (self._peers > 1 and not self._runs_in_all_peers()):
            return ""
        with captured_variables.restored(self._function):
            before = self._alike(self._copies())
            whole = self._outcome(self._whole, before, first_alone=True)
            again = self._outcome(self._whole, before, first_alone=True)
            cut = self._outcome(self._cut, before, first_alone=False)
        same, again = self._of_first_peer(whole), self._of_first_peer(again)
        # A state that is a largest or smallest number may begin with an infinite one.
        totals = [total for n, total in enumerate(same.totals) if n not in self._step.merges]
        is_finite = all(np.isfinite(a).all() for a in [*same.gradients[0], *(c[0] for c in same.copies), *totals])
        known = is_finite and not self._difference(same, again, before, 0.1, first_alone=True)
        found = self._difference(same, cut, before, 1.0, first_alone=False)
        # All peers must come to the same verdict.
        verdicts = collectives.all_gather(self._strategy, (found if known else "?").encode())
        return "" if b"?" in verdicts else next((v.decode() for v in verdicts if v), "")

    def _runs_in_all_peers(self) -> bool:
        """Does the step take these rows? What one process raises in the middle of an update ends it for all of them."""
        ranks = range(self._slices.first, self._slices.first + self._slices.count)
        runs = False
        with contextlib.suppress(Exception):
            self._run_alone([self._batch, *(self._cut(rank)[0] for rank in ranks)])
            runs = True
        return set(collectives.all_gather(self._strategy, b"1" if runs else b"0")) == {b"1"}

    def _run_alone(self, batches: Sequence) -> None:
        spec = tf.nest.map_structure(_of_any_size, self._batch)
        if isinstance(self._step, _KerasStep):
            function = self._step.alone(spec)
        else:
            function = custom_step_trace.without_others(self._model, getattr(self._model, self._method), spec)
        self._progress.moves()
        with captured_variables.restored(function):
            for rows in batches:
                function(rows)
                self._progress.moves()

    def _whole(self, rank: int):
        rows = self._rows if rank == 0 else 1
        return tf.nest.map_structure(lambda t: t[:rows], self._batch), tf.constant(float(rank == 0))

    def _cut(self, rank: int):
        low, high, weight = slice_bounds(self._rows, rank, self._slices.total)
        return tf.nest.map_structure(lambda t: t[low:high], self._batch), weight

    def _copies(self) -> list[list[np.ndarray]]:
        return [[np.array(part.numpy()) for part in parts] for _, _, parts in self._known]

    def _alike(self, copies: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        """The first replica's copies for all: statistics of batches, say, that replicas have trained with differ."""
        firsts = [each[0] for each in copies]
        firsts = collectives.broadcast(self._strategy, firsts) if firsts else []
        return [[first] * len(each) for first, each in zip(firsts, copies, strict=True)]

    def _outcome(self, make_slice: Callable, before, *, first_alone: bool) -> _Outcome:
        """Sets the variables to `before`, except random seeds, and runs one update."""
        for (path, _, parts), values in zip(self._known, before, strict=True):
            if not path.endswith(_SEED):
                for part, value in zip(parts, values, strict=True):
                    part.assign(value)
        results = self._function(self._slices.map(make_slice))
        self._progress.moves()
        values = [[np.asarray(t, np.float64) for t in each] for each in zip(*results[: self._values], strict=True)]
        values = functools.reduce(functools.partial(merge, self._step.merges), values)
        gradients = [[np.asarray(t, np.float64) for t in each] for each in zip(*results[self._values :], strict=True)]
        copies = self._copies()
        sums = [self._total(v, c, first_alone) for (_, v, _), c in zip(self._known, copies, strict=True) if _is_sum(v)]
        return _Outcome(gradients or [[]], copies, self._over_peers([*values, *sums]))

    def _total(self, variable, copies: Sequence[np.ndarray], first_alone: bool) -> np.ndarray:
        """What this process has of a variable that is read from all replicas."""
        if variable.aggregation == tf.VariableAggregation.SUM:
            return np.sum(np.asarray(copies, np.float64), 0)
        if variable.aggregation == tf.VariableAggregation.MEAN and not first_alone:
            return np.sum(np.asarray(copies, np.float64), 0) / self._slices.total
        return np.asarray(copies[0], np.float64) * (self._rank == 0)

    def _over_peers(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self._peers == 1:
            return list(values)
        reduce = functools.partial(collectives.all_reduce, self._strategy, kinds=self._step.merges)
        sums = tf.function(lambda *tensors: reduce(tensors), autograph=False)
        return [np.array(t) for t in sums(*(tf.constant(v) for v in values))]

    def _of_first_peer(self, outcome: _Outcome) -> _Outcome:
        """With the gradients and variables of the first replica of all."""
        gradients, copies = outcome.gradients[0], [c[0] for c in outcome.copies]
        arrays = collectives.broadcast(self._strategy, [*gradients, *copies]) if gradients or copies else []
        split = len(gradients)
        return _Outcome([arrays[:split]], [[a] for a in arrays[split:]], outcome.totals)

    def _difference(self, one: _Outcome, other: _Outcome, before, factor: float, *, first_alone: bool) -> str:
        """Where `other` is not what `one` is: names one thing.

        Args:
          factor: of what is tolerated.
          first_alone: compare the first replica alone?
        """
        replicas = 1 if first_alone else None
        ends = [n for n, path in enumerate(self._paths) if not path]
        for begin, end in zip([0, *(n + 1 for n in ends)], ends, strict=False):
            scale = max((_largest(one.gradients[0][n]) for n in range(begin, end)), default=0.0)
            for n in range(begin, end):
                expected = one.gradients[0][n]
                tolerated = factor * (self._rtol * (_largest(expected) + 0.05 * scale) + 1e-8)
                if any(not _close(each[n], expected, tolerated) for each in other.gradients[:replicas]):
                    return f"the gradient of {self._paths[n]}"
        totals = list(zip(one.totals, other.totals, strict=True))
        sums = iter(totals[self._values :])
        for (path, variable, _), was, a, b in zip(self._known, before, one.copies, other.copies, strict=True):
            if path.endswith(_SEED):
                continue
            expected, found = a[0], b[:replicas]
            if _is_sum(variable):
                expected, total = next(sums)
                found = [total]
            is_float = np.issubdtype(expected.dtype, np.floating) or expected.dtype.kind == "V"
            change = _largest(np.asarray(expected, np.float64) - np.asarray(was[0], np.float64))
            tolerated = factor * (self._rtol * change + self._small * _largest(expected) + 1e-7) if is_float else 0.0
            if any(not _close(each, expected, tolerated) for each in found):
                return path
        first = 1 + len(self._step.log_names)  # of the metric sums
        for name, (expected, found) in zip(self._step.log_names, totals[1:first], strict=True):
            tolerated = factor * (self._rtol * _largest(expected) + self._small)
            if self._step.is_last_value(name) and not _close(found, expected, tolerated):
                return f"the log {name}"
        for path, (expected, found) in zip(self._step.metric_paths, totals[first : self._values], strict=True):
            rounding = self._small * self._rows  # of a sum over the rows that comes to nearly nothing
            if not _close(found, expected, factor * ((self._rtol + self._small) * _largest(expected) + rounding)):
                return path
        return ""


def _has_random_operations(graph: tf.Graph) -> bool:
    definition = graph.as_graph_def()
    bodies = [definition.node, *(function.node_def for function in definition.library.function)]
    # A generator of seeds, as Keras's, asks how the device counts though nothing is drawn.
    return any(
        ("Random" in node.op or node.op == "Multinomial") and "GetAlg" not in node.op and "GetKeyCounter" not in node.op
        for nodes in bodies
        for node in nodes
    )


def _of_any_size(rows) -> tf.TensorSpec:
    return tf.TensorSpec([None, *rows.shape[1:]], rows.dtype)


def _largest(array) -> float:
    return float(np.max(np.abs(np.asarray(array, np.float64)), initial=0.0))


def _close(a, b, tolerated: float) -> bool:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):  # of infinite numbers
        apart = np.where(a == b, 0.0, np.abs(a - b))
    return bool(np.all(np.isfinite(apart) & (apart <= tolerated)))


def _is_sum(variable) -> bool:
    """Does each replica hold a part of it?"""
    return variable.synchronization == tf.VariableSynchronization.ON_READ


@contextlib.contextmanager
def _synchronized(model: keras.Model) -> Iterator[None]:
    """Inside, all statistics of batches are those of the whole batch: others are known not to be."""
    kind = keras.layers.BatchNormalization
    layers = [layer for layer in layers_of(model) if isinstance(layer, kind) and not layer.synchronized]
    for layer in layers:
        layer.synchronized = True
    try:
        yield
    finally:
        for layer in layers:
            layer.synchronized = False


@contextlib.contextmanager
def _without_dropout(model: keras.Model) -> Iterator[None]:
    """Inside, Keras's layers of dropout and noise pass on what they get."""
    found = [
        (layer, name, vars(layer)[name])
        for layer in layers_of(model)
        for name in ("rate", "stddev")
        if is_of_keras(layer) and isinstance(vars(layer).get(name), float)
    ]
    for layer, name, _ in found:
        setattr(layer, name, 0.0)
    try:
        yield
    finally:
        for layer, name, value in found:
            setattr(layer, name, value)


def _variables(model: keras.Model) -> dict[str, Any]:
    """The `tf.Variable`s of a model and of what it has as attributes, by names."""
    found, seen = {}, {}  # by ids, which are their own only while things live

    def add(thing) -> None:
        if isinstance(thing, (list, tuple, dict)):
            if id(thing) in seen:
                return
            seen[id(thing)] = thing
            for each in thing.values() if isinstance(thing, dict) else thing:
                add(each)
        elif isinstance(thing, (keras.Variable, tf.Variable)):
            variable = thing.value if isinstance(thing, keras.Variable) else thing
            if id(variable) not in seen:
                seen[id(variable)] = variable
                path = thing.path if isinstance(thing, keras.Variable) else thing.name
                found[path if path not in found else f"{len(found)}/{path}"] = variable
        elif isinstance(thing, (keras.optimizers.Optimizer, keras.metrics.Metric, keras.random.SeedGenerator)):
            add(getattr(thing, "variables", None) or getattr(thing, "state", None))

    add(model.variables)
    add(model.metrics)
    for layer in [model, *layers_of(model)]:
        add(list(vars(layer).values()))
    return found
