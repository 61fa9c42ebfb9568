"""One training of a configuration, by Keras or by ours, and all that came out of it."""

from __future__ import annotations

import contextlib
import csv
import functools
import pathlib
import re
import tempfile
import time
import traceback
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf2dist
from tests.differential import configurations, parts
from tests.differential.configurations import Configuration
from tests.differential.outcomes import Outcome
from tf2dist.errors import reason

_OURS = str(pathlib.Path(tf2dist.__file__).parent)


@dataclass(frozen=True)
class Runner:
    """Who trains: Keras without a strategy, or ours on one.

    Attributes:
      strategy: None for Keras.
      options: for parameter servers.
      permuted: Keras gets the rows of each batch in another order, and compiles its steps, which changes nothing but
        rounding. Else it runs them as they are written: for a few small steps that is three times as fast.
    """

    strategy: tf.distribute.Strategy | None = None
    options: tf2dist.ParameterServer | None = None
    permuted: bool = False

    def train(self, configuration: Configuration) -> Outcome:
        """Trains a new model."""
        began = time.perf_counter()
        c = configurations.complete(configuration)
        model: list[keras.Model] = []
        try:
            with tempfile.TemporaryDirectory() as directory:
                outcome = self._train(c, directory, model)
        except Exception as error:
            outcome = _not_trained(error, model)
        keras.backend.clear_session(free_memory=False)
        outcome.seconds = time.perf_counter() - began
        return outcome

    def _train(self, c: dict[str, Any], directory: str, made: list[keras.Model]) -> Outcome:
        keras.backend.clear_session(free_memory=False)  # names, which the history has, are counted up
        with self.strategy.scope() if self.strategy is not None else contextlib.nullcontext():
            keras.utils.set_random_seed(7)
            model = parts.model(c, eager=self.strategy is None and not self.permuted)
        made.append(model)
        outcome = Outcome(initial=_variables(model) if model.built else {})
        values = parts.arrays(c)
        callbacks = parts.callbacks(c, directory)
        epochs = 0
        for _ in range(c["fits"]):
            history = (self._fit_keras if self.strategy is None else self._fit_ours)(
                model, c, values, {"epochs": epochs + c["epochs"], "initial_epoch": epochs + c["initial_epoch"],
                                   "callbacks": callbacks}
            )  # fmt: skip
            outcome.numbers[f"epochs from {epochs}"] = _numbers(history.epoch)
            outcome.numbers |= {f"{k} from epoch {epochs}": _numbers(v) for k, v in history.history.items()}
            epochs += c["epochs"]
        outcome.numbers["updates"] = _numbers(model.optimizer.iterations)
        outcome.final = _variables(model)
        outcome.numbers |= self._afterwards(model, c, values) | _noted(callbacks, directory)
        return outcome

    def _fit_keras(self, model: keras.Model, c: dict[str, Any], values: tuple, arguments: dict) -> Any:
        arguments |= {"steps_per_epoch": c["steps_per_epoch"], "verbose": 0}
        arguments |= _validation(c)
        if c["class_weight"]:
            arguments["class_weight"] = {0: 0.5, 1: 2.0, 2: 1.5}
        if self.permuted:
            values = parts.whole_batches(values, c["batch"], lambda rows: rows[::-1])
        if c["data"] == "arrays":
            weight = values[2] if len(values) == 3 else None
            return model.fit(
                values[0], values[1], sample_weight=weight, batch_size=c["batch"], shuffle=False, **arguments
            )
        return model.fit(parts.keras_dataset(c, values), **arguments)

    def _fit_ours(self, model: keras.Model, c: dict[str, Any], values: tuple, arguments: dict) -> Any:
        arguments |= {"steps_per_epoch": c["steps_per_epoch"], "steps_per_execution": c["steps_per_execution"]}
        arguments |= _validation(c) | {"parameter_server": self.options, "verbose": 0}
        if c["class_weight"]:
            arguments["class_weight"] = {0: 0.5, 1: 2.0, 2: 1.5}
        if c["data"] == "arrays":
            arguments |= {"batch_size": c["batch"], "shuffle": False}
        return tf2dist.fit(model, parts.training_data(c, values), **arguments)

    def _afterwards(self, model: keras.Model, c: dict[str, Any], values: tuple) -> dict[str, np.ndarray]:
        """What evaluation or prediction gives, of arrays where training had them, else of a dataset."""
        batch, as_arrays = c["batch"], c["data"] == "arrays"
        data = values if as_arrays else parts.as_dataset(values, batch)
        size: dict[str, Any] = {"batch_size": batch} if as_arrays else {}
        quiet = {} if self.strategy else {"verbose": 0}
        if c["afterwards"] == "predict":
            predict = model.predict if self.strategy is None else functools.partial(tf2dist.predict, model)
            leaves = tf.nest.flatten(predict(values[0] if as_arrays else data, **size, **quiet))
            return {f"prediction {n}": np.asarray(leaf, np.float64) for n, leaf in enumerate(leaves)}
        if c["afterwards"] == "evaluate":
            if self.strategy is not None:
                evaluated = tf2dist.evaluate(model, data, **size, return_dict=True)
            else:
                given = dict(zip(("x", "y", "sample_weight"), values, strict=False)) if as_arrays else {"x": data}
                evaluated = model.evaluate(**given, **size, **quiet, return_dict=True)
            return {f"evaluated {name}": _numbers(value) for name, value in evaluated.items()}
        return {}


def _validation(c: dict[str, Any]) -> dict[str, Any]:
    arguments = {"validation_data": parts.validation_data(c)}
    names = ("validation_steps", "validation_batch_size", "validation_freq")
    return arguments | ({name: c[name] for name in names} if c["validation"] else {})


def _variables(model: keras.Model) -> dict[str, np.ndarray]:
    """Weights and optimizer variables by place and name; names that Keras counts up without the count."""
    groups = {"weight": model.variables, "optimizer": model.optimizer.variables if model.optimizer.built else []}
    return {
        f"{group} {n} {re.sub(r'_[0-9]+', '', v.name)}": np.asarray(keras.ops.convert_to_numpy(v))
        for group, variables in groups.items()
        for n, v in enumerate(variables)
    }


def _numbers(values: Any) -> np.ndarray:
    return np.ravel(np.asarray(keras.ops.convert_to_numpy(values), np.float64))


def _noted(callbacks: list[keras.callbacks.Callback], directory: str) -> dict[str, np.ndarray]:
    """What callbacks have seen and written."""
    noted = {}
    for callback in callbacks:
        if isinstance(callback, parts.Hooks):
            noted["batches begun"] = _numbers(callback.begun)
            noted["batches ended"] = _numbers([batch for batch, _ in callback.ended])
            noted["loss at the end of batches"] = _numbers([loss for _, loss in callback.ended])
            noted["steps that callbacks are told"] = _numbers(-1 if callback.steps is None else callback.steps)
    log = pathlib.Path(directory, "log.csv")
    if log.exists():
        with log.open() as lines:
            for name in (rows := list(csv.DictReader(lines))) and rows[0]:
                noted[f"CSV {name}"] = np.concatenate([_in_cell(row[name]) for row in rows])
    return noted


def _in_cell(text: str) -> np.ndarray:
    """A cell of a CSV file holds a number, or several in brackets."""
    return np.array([float(number) for number in re.sub(r'[\[\]",]', " ", text).replace("NA", "nan").split()])


def _not_trained(error: Exception, made: list[keras.Model]) -> Outcome:
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    begun = bool(made) and made[0].optimizer.built and int(made[0].optimizer.iterations.numpy()) > 0
    refused = isinstance(error, ValueError) and last.startswith(_OURS) and not begun
    where = next((f for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename.startswith(_OURS)), None)
    place = f" ({pathlib.Path(where.filename).relative_to(_OURS)}:{where.lineno})" if where else ""
    return Outcome(
        "refused" if refused else "failed", reason(error)[:300] + place, type(error).__name__,
        fatal=isinstance(error, tf.errors.OpError),
    )  # fmt: skip
