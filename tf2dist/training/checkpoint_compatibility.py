"""Which checkpoints a model can take: those whose model and optimizer have variables of the same shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras

from tf2dist.compat.model import has_optimizer
from tf2dist.errors import CheckpointError

Shapes = dict[str, list[list[int]]]


def shapes_of(model: keras.Model) -> Shapes:
    """The shapes of a model's and its optimizer's variables; names of variables change from process to process."""
    return {owner: _shapes(_owned(model, owner)) for owner in ("model", "optimizer")}


def _owned(model: keras.Model, owner: str) -> list[keras.Variable]:
    if owner == "model":
        return model.variables
    return model.optimizer.variables if has_optimizer(model) else []


def _shapes(variables: Sequence[keras.Variable]) -> list[list[int]]:
    return [list(v.shape) for v in variables]


def check_shapes(model: keras.Model, found: Mapping[str, list[list[int]]], path: str) -> None:
    """Raises CheckpointError if the checkpoint at `path`, which has these shapes, is of another model or optimizer.

    A model without an optimizer can take those of all.
    """
    for owner, theirs in found.items():
        if owner == "optimizer" and not has_optimizer(model):
            continue  # it gets the weights alone
        ours = _owned(model, owner)
        if _shapes(ours) != theirs:
            kind = type(model if owner == "model" else model.optimizer).__name__
            raise CheckpointError(
                f"the checkpoint {path} is of another {owner}, name another directory or remove it: "
                f"{_difference(kind, ours, theirs)}"
            )


def _difference(kind: str, ours: Sequence[keras.Variable], theirs: Sequence[list[int]]) -> str:
    """How many variables each has, and the first that is not alike, by our name: the checkpoint has none."""
    said: list[str] = []
    if len(ours) != len(theirs):
        said.append(f"it has {len(theirs)} variables, and the {kind} here has {len(ours)}")
    unlike = [(v, shape) for v, shape in zip(ours, theirs, strict=False) if list(v.shape) != shape]
    if unlike:
        variable, shape = unlike[0]
        said.append(f"in the place of {variable.path}, of shape {list(variable.shape)}, it has one of shape {shape}")
    elif len(ours) > len(theirs):
        said.append(f"the first that it lacks is {ours[len(theirs)].path}")
    return "; ".join(said)
