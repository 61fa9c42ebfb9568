"""Models as people write them with Keras, each with its data and with what can be said about its numbers.

None of them knows of tf2dist. Between them they use every optimizer of `keras.optimizers` and every additive metric of
`keras.metrics` (tests/test_conformance.py sees to it), so each model is trained once on a strategy instead of the
full product of models, optimizers and metrics.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests import bands

REPLICAS = {"one": 1, "mirrored": 2, "central": 2, "multiworker": 2, "ps": 1}  # that take part in one update


@dataclass(frozen=True)
class Equal:
    """Losses, metrics and weights are Keras's own on one device, to these tolerances."""

    rtol: float = 2e-4
    atol: float = 2e-5


@dataclass(frozen=True)
class Band:
    """Loss and metrics go as far as Keras's own on one device, by `bands.outside`; `why` they cannot be the same.

    `aside` are metrics that a few examples can move so far that they are not compared.
    """

    why: str
    fraction: float = bands.FRACTION
    aside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """`tf2dist.fit` raises a ValueError with these words."""

    match: str


@dataclass(frozen=True)
class Case:
    """A model, its data, and what holds for it where.

    `build` makes the compiled model, with the weights that the seed of the moment gives; `data` are arrays
    `(x, y)` or `(x, y, sample_weight)`. What holds: `alone` with one replica, `replicas` with several in step (as
    `alone` if None), `asynchronous` with several workers that do not wait for each other; `where` for single
    strategies by name, and before all of these. A `Band` is for a model that has learned, and with half of the updates
    has not learned enough: `band_epochs` is how long that takes. `needs` is an optimizer that older versions of Keras
    do not have.
    """

    build: Callable[[], keras.Model]
    data: Callable[[], tuple]
    batch: int = 16
    epochs: int = 2
    band_epochs: int = 10
    dataset: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None  # given as a dataset of batches, mapped so
    fit: dict[str, Any] = field(default_factory=dict)  # further arguments, of Keras and of tf2dist
    validate: bool = False
    alone: Any = field(default_factory=Equal)
    replicas: Any = None
    asynchronous: Any = field(default_factory=lambda: Band("workers do not take turns"))
    where: dict[str, Any] = field(default_factory=dict)
    untouched: tuple[str, ...] = ()  # parts of the paths of weights that must keep their values
    skips: bool = False  # the optimizer skips a step whose gradients overflow
    needs: str = ""

    def expected(self, strategy: str, asynchronous: bool = False):
        """What holds on this strategy."""
        if strategy in self.where:
            return self.where[strategy]
        if asynchronous:
            return self.asynchronous
        return self.alone if REPLICAS[strategy] == 1 or self.replicas is None else self.replicas

    def bands(self) -> set[Band]:
        """All that are expected on some strategy."""
        found = {self.expected(strategy) for strategy in REPLICAS} | {self.expected("ps", asynchronous=True)}
        return {e for e in found if isinstance(e, Band)}

    def epochs_for(self, expected) -> int:
        """How long to train where this is expected."""
        return self.band_epochs if isinstance(expected, Band) else self.epochs

    def model(self, strategy: tf.distribute.Strategy | None = None) -> keras.Model:
        """A new model on a strategy; the same weights and the same names each time."""
        # Names of metrics are keys of the history, and counted up. (Inside of a scope this would break its end.)
        keras.backend.clear_session(free_memory=False)
        with strategy.scope() if strategy is not None else contextlib.nullcontext():
            keras.utils.set_random_seed(7)
            return self.build()

    @property
    def rows(self) -> int:
        return len(tf.nest.flatten(self.data())[0])

    @property
    def steps(self) -> int:
        return -(-self.rows // self.batch)

    def batches(self) -> tf.data.Dataset:
        """The data as a dataset of global batches in the order of the arrays."""
        dataset = tf.data.Dataset.from_tensor_slices(self.data()).batch(self.batch)
        return dataset if self.dataset is None else self.dataset(dataset)

    def whole(self):
        """All of the data in one batch, as the model sees it."""
        dataset = tf.data.Dataset.from_tensor_slices(self.data()).batch(self.rows)
        return next(iter(dataset if self.dataset is None else self.dataset(dataset)))

    def inputs(self):
        """All inputs in one batch, as the model sees them."""
        return self.whole()[0]


@dataclass
class Trained:
    """What came of a training."""

    history: dict[str, list]
    weights: dict[str, np.ndarray]
    updates: int


def trained(model: keras.Model, history: keras.callbacks.History) -> Trained:
    """What there is to compare."""
    updates = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
    return Trained(dict(history.history), weights_of(model), updates)


def weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    """What `values_of` has. By path and place, since names are counted up in a process."""
    # Copies: what Keras returns may be the memory of the variable, which changes.
    return {f"{i}:{v.path}": np.array(keras.ops.convert_to_numpy(v)) for i, v in enumerate(values_of(model))}


def values_of(model: keras.Model) -> list[keras.Variable]:
    """Variables that training must give the same values: weights, but no state of random numbers."""
    return [v for v in model.variables if "seed_generator" not in v.path]


def by_keras(name: str, expected=None) -> Trained:
    """Keras's own training of the case, on one device and without a strategy; what everything is compared with."""
    return _by_keras(name, CASES[name].epochs_for(expected))[1]


def halfway(name: str, band: Band) -> dict[str, np.ndarray]:
    """The weights of Keras's training after half of its epochs: of a training that has lost every second update."""
    return _by_keras(name, CASES[name].epochs_for(band))[2]


@functools.cache
def _by_keras(name: str, epochs: int) -> tuple[keras.Model, Trained, dict[str, np.ndarray]]:
    case, half = CASES[name], {}
    model = case.model()
    validation = {"validation_data": case.batches()} if case.validate else {}

    def note(epoch, logs):
        if epoch + 1 == epochs // 2:
            half.update(weights_of(model))

    notes = keras.callbacks.LambdaCallback(on_epoch_end=note)
    history = model.fit(case.batches(), epochs=epochs, verbose=0, callbacks=[notes], **case.fit, **validation)
    return model, trained(model, history), half


def parts(name: str) -> set[type]:
    """The classes of the optimizers and metrics that the case has trained with."""
    model, _, _ = _by_keras(name, CASES[name].epochs)
    metrics = [*model.metrics, *(model._compile_metrics.metrics if model._compile_metrics is not None else [])]
    return set(map(type, [model.optimizer, *getattr(model.optimizer, "optimizers", ()), *metrics]))


def by_tf2dist(name: str, strategy: tf.distribute.Strategy, expected=None) -> tuple[keras.Model, Trained]:
    """Ours, on a strategy where this is expected."""
    import tf2dist

    case = CASES[name]
    model = case.model(strategy)
    if case.dataset is None:
        data, arguments = case.data(), {"batch_size": case.batch, "shuffle": False}
    else:
        data, arguments = case.batches(), {}
    if case.validate:
        arguments["validation_data"] = data
    if isinstance(expected, Band):
        arguments["steps_per_execution"] = 1  # so that the few steps of an epoch are spread over all workers
    history = tf2dist.fit(model, data, epochs=case.epochs_for(expected), verbose=0, **arguments, **case.fit)
    return model, trained(model, history)


@functools.cache
def here(name: str, strategy: str) -> tuple[keras.Model, Trained]:
    """Ours, on a strategy of one process; trained once for all tests."""
    return by_tf2dist(name, make(strategy), CASES[name].expected(strategy))


def make(strategy: str) -> tf.distribute.Strategy:
    """A strategy of one process, with two replicas where it has several."""
    import tf2dist

    return tf2dist.make_strategy(strategy, replicas=REPLICAS[strategy] if strategy != "one" else None)


def as_built(name: str) -> keras.Model:
    """The case's model in plain Keras, untrained."""
    model = CASES[name].model()
    if not model.built:
        model(CASES[name].inputs())
    return model


def with_weights(name: str, weights: dict[str, np.ndarray]) -> keras.Model:
    """The case's model in plain Keras, with the weights of a training."""
    model = as_built(name)
    for variable, value in zip(values_of(model), weights.values(), strict=True):
        variable.assign(value)
    return model


def evaluated(name: str, model: keras.Model) -> dict[str, float]:
    """Loss and metrics over all of the data; unlike an epoch's, they do not depend on which batches came in it."""
    model.run_eagerly = True  # faster than to trace it for one batch
    found = model.evaluate(tf.data.Dataset.from_tensors(CASES[name].whole()), verbose=0, return_dict=True)
    return {key: float(np.mean(value)) for key, value in found.items()}  # of some metrics there is one a class


@functools.cache
def way(name: str, band: Band) -> tuple[dict[str, float], dict[str, float]]:
    """Loss and metrics that the band compares: those of the model as built, and where Keras comes on one device."""
    ends = as_built(name), with_weights(name, by_keras(name, band).weights)
    begin, end = ({k: v for k, v in evaluated(name, m).items() if k not in band.aside} for m in ends)
    return begin, end


def outside(name: str, weights: dict[str, np.ndarray], band: Band) -> list[str]:
    """What is outside of the band in a model with these weights, a line each."""
    return bands.outside(*way(name, band), evaluated(name, with_weights(name, weights)), band.fraction)


def examples_in_async_epoch(case: Case) -> set[int]:
    """How many examples an epoch may hold when workers don't take turns: any number of its batches may be short."""
    short = case.steps * case.batch - case.rows
    return {case.steps * case.batch - n * short for n in range(case.steps + 1)}


def check(name: str, ours: Trained, expected) -> None:
    """Compares a training with Keras's own."""
    case, theirs = CASES[name], by_keras(name, expected)
    assert set(ours.history) == set(theirs.history)
    if case.skips and not isinstance(expected, Equal):
        assert 0 < ours.updates <= case.epochs_for(expected) * case.steps
    else:
        assert ours.updates == theirs.updates, "updates"
    for key, values in ours.history.items():
        assert np.isfinite(np.asarray(values)).all(), f"{key}: {values}"
    assert len(ours.weights) == len(theirs.weights)
    for (path, a), b in zip(ours.weights.items(), theirs.weights.values(), strict=True):
        assert a.shape == b.shape
        if a.dtype.kind == "f":
            assert np.isfinite(a).all(), path
    if isinstance(expected, Equal):
        for key, values in theirs.history.items():
            np.testing.assert_allclose(ours.history[key], values, expected.rtol, expected.atol, err_msg=key)
        for (path, a), b in zip(ours.weights.items(), theirs.weights.values(), strict=True):
            np.testing.assert_allclose(a, b, expected.rtol, expected.atol, err_msg=path)
    elif isinstance(expected, Band):
        assert outside(name, ours.weights, expected) == []
    initial = case.model() if case.untouched else None
    for part in case.untouched:
        for v, a in zip(values_of(initial), ours.weights.values(), strict=True):
            if part in v.path:
                np.testing.assert_array_equal(a, keras.ops.convert_to_numpy(v), err_msg=v.path)


# The cases are made of the classes above.
from tests.zoo.models import CASES, SAVED  # noqa: E402

__all__ = ["CASES", "SAVED"]
