"""Keras's `StatelessScope`, in which a model reads given tensors and what it writes is held back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import stateless_scope

compute_output_spec: Any = backend.compute_output_spec
in_stateless_scope: Any = stateless_scope.in_stateless_scope


@tf.custom_gradient
def _overwritten(before, value):
    """`value`, with the gradient of `before`."""
    return tf.identity(value), lambda upstream: (upstream, None)


class _VariablesScope(keras.StatelessScope):
    """A `StatelessScope` in which gradients of a variable are those of a variable, though it holds tensors.

    The gradient of a variable that a layer overwrites in the middle of a step, as `SpectralNormalization` does, is
    that of all its reads, before and after. It does not pass through what was assigned; through a tensor it would.
    """

    def __init__(self, state_mapping) -> None:
        super().__init__(state_mapping=state_mapping, collect_losses=True)
        self.updated: dict[int, keras.Variable] = {}

    def add_update(self, update) -> None:
        variable, value = update
        self.updated[id(variable)] = variable
        before = self.get_current_value(variable)
        if variable.trainable and before is not None and value.dtype.is_floating:
            value = _overwritten(tf.convert_to_tensor(before), value)
        super().add_update((variable, value))


class OverlayScope:
    """A `StatelessScope` over some variables; all others are read where they are.

    A plain `StatelessScope` drops the losses that layers add unless it collects them, and then it is asked for every
    variable that is regularized, and has none of those that it was not given (keras/src/layers/layer.py,
    `_get_regularization_losses`). Scopes do not nest either: here what an outer one holds is seen inside.

    Args:
      values: variables and what they are inside.
      readable: variables that are read where they are, or in the outer scope.
    """

    def __init__(self, values: Iterable[tuple[keras.Variable, object]], readable: Sequence[keras.Variable]):
        self.scope = _VariablesScope(list(values))
        held = {id(v): v._value for v in readable}
        if in_stateless_scope():
            held |= stateless_scope.get_stateless_scope().state_mapping
        self.scope.state_mapping = held | self.scope.state_mapping
        self._before = dict(self.scope.state_mapping)

    def __enter__(self) -> OverlayScope:
        self.scope.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.scope.__exit__(*error)

    def value(self, variable: keras.Variable):
        """What the variable is inside; None for one that was neither given, nor readable, nor written."""
        return self.scope.get_current_value(variable)

    def before(self, variable: keras.Variable) -> Any:
        """What the variable was at the beginning; None for one that was neither given nor readable."""
        return self._before.get(id(variable))

    def written(self) -> list[tuple[keras.Variable, Any]]:
        """The variables that were written inside, also those that no model has, with what was written."""
        return [(v, self.value(v)) for v in self.scope.updated.values()]


class _HeldBackScope(keras.StatelessScope):
    def __init__(self, held: dict[int, Any]) -> None:
        super().__init__(collect_losses=True)
        self.held = held

    def get_current_value(self, variable):
        return self.held.get(id(variable), variable._value)

    def add_update(self, update) -> None:
        variable, value = update
        if id(variable) in self.held:
            self.held[id(variable)] = value
        else:
            variable._direct_assign(value)


class HeldBackScope:
    """A scope in which some variables are tensors, and what is written to them is held back; all others are as ever.

    A `StatelessScope` holds back what is written to any variable (keras/src/backend/common/variables.py, `assign`).

    Args:
      values: variables and what they are at the beginning.
    """

    def __init__(self, values: Iterable[tuple[keras.Variable, object]]):
        values = list(values)
        self._variables = [v for v, _ in values]  # an id is a variable's own only while it lives
        self._scope = _HeldBackScope({id(v): value for v, value in values})

    def __enter__(self) -> HeldBackScope:
        self._scope.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._scope.__exit__(*error)

    def values(self) -> list[Any]:
        """What the variables are now."""
        return [self._scope.held[id(v)] for v in self._variables]


def holds_back(variable: keras.Variable) -> bool:
    """Whether what is written to the variable here is held back."""
    if not in_stateless_scope():
        return False
    scope = stateless_scope.get_stateless_scope()
    return not isinstance(scope, _HeldBackScope) or id(variable) in scope.held
