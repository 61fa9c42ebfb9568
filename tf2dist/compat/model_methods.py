"""One model whose `fit`, `evaluate` and `predict` are other functions; those of all other models stay Keras's.

A class may define such a method itself and call Keras's by `super()`, as tasks of keras-hub do to preprocess their
data. So its method runs, and while it runs Keras's own leads to the other function, for this model in this thread.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from tf2dist.compat.patching import Patch

_NAMES = ("fit", "evaluate", "predict")
_VALIDATION = "_tf2dist_validation"  # a model's attribute while `fit` calls its class's own `evaluate`
_LENT = "_tf2dist_lent_methods"  # a model's attribute
_here = threading.local()  # functions: those of the model whose own method runs in this thread, by name
_OWNER = next(c for c in keras.Model.__mro__ if "fit" in vars(c))  # whose methods they are: the backend's trainer


def replace(model: keras.Model, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Gives a model other methods: each is called with the model and the method's arguments."""
    vars(model).pop(_LENT, None)
    for name, function in functions.items():
        own = getattr(type(model), name) is not getattr(keras.Model, name)
        setattr(model, name, functools.partial(_call_own if own else _call, model, name, function))


def lend(model: keras.Model, functions: Mapping[str, Callable[..., Any]]) -> None:
    """As `replace`, for methods that cannot run as they are; not where the model has some of its own as attributes.

    `fit` then still validates by what it was given, and not by the `evaluate` of the model's class.
    """
    if not any(name in vars(model) for name in functions):
        replace(model, functions)
        vars(model)[_LENT] = True


@contextlib.contextmanager
def lending(model: keras.Model, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """As `lend`, for as long as the block runs."""
    if any(name in vars(model) for name in functions):
        yield
        return
    lend(model, functions)
    try:
        yield
    finally:
        for name in (*functions, _LENT):
            vars(model).pop(name, None)


def has_own(model: keras.Model, name: str) -> bool:
    """Whether a model with other methods has one of this name in its class, which leads to the other one."""
    return _LENT not in vars(model) and getattr(vars(model).get(name), "func", None) is _call_own


def validate_by_own(model: keras.Model, as_given: Callable[[], Any], **arguments: Any) -> Any:
    """Calls the `evaluate` of a model's class as Keras's `fit` does for validation; returns what it returns.

    Keras's own, which the class calls by `super()`, then takes the validation data as `fit` was given them, whatever
    the class has made of them, unless the class drops the argument `_use_cached_eval_dataset`
    (keras/src/backend/tensorflow/trainer.py).

    Args:
      model: of which `has_own(model, "evaluate")` is true.
      as_given: evaluates the data that `fit` was given.
      arguments: of `evaluate`.
    """
    vars(model)[_VALIDATION] = as_given
    try:
        return model.evaluate(**arguments, _use_cached_eval_dataset=True)
    finally:
        del vars(model)[_VALIDATION]


def _call(model: keras.Model, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(model, *args, **kwargs)


def _call_own(model: keras.Model, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    before = getattr(_here, "functions", {})
    _here.functions = {**before, (id(model), name): function}
    try:
        with _patch.applied():
            return getattr(type(model), name)(model, *args, **kwargs)
    finally:
        _here.functions = before


def _redirected(name: str) -> Callable[..., Any]:
    def method(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        function = getattr(_here, "functions", {}).get((id(self), name))
        if function is None:
            return _patch.original(name)(self, *args, **kwargs)
        if kwargs.pop("_use_cached_eval_dataset", False) and _VALIDATION in vars(self):
            return vars(self)[_VALIDATION]()
        return function(self, *args, **kwargs)

    return method


_patch = Patch(_OWNER, {name: _redirected(name) for name in _NAMES})
