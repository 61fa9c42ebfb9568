"""Which checkpoints a model can take: those whose model and optimizer have variables of the same shapes."""

from __future__ import annotations

from collections.abc import Mapping

import keras

from tf2dist.errors import CheckpointError

Shapes = dict[str, list[list[int]]]


def shapes_of(model: keras.Model) -> Shapes:
    """The shapes of a model's and its optimizer's variables; names of variables change from process to process."""
    return {
        "model": [list(v.shape) for v in model.variables],
        "optimizer": [list(v.shape) for v in model.optimizer.variables] if model.optimizer else [],
    }


def check_shapes(model: keras.Model, found: Mapping[str, list[list[int]]], path: str) -> None:
    """Raises CheckpointError if the checkpoint at `path`, which has these shapes, is of another model or optimizer."""
    for owner, theirs in found.items():
        ours = shapes_of(model)[owner]
        if ours != theirs:
            differ = [(a, b) for a, b in zip(ours, theirs, strict=False) if a != b]
            how = f"{differ[0][1]} where this one has {differ[0][0]}" if differ else f"{len(theirs)}, not {len(ours)}"
            raise CheckpointError(
                f"the checkpoint {path} is of another {owner}, name another directory or remove it: "
                f"its variables are {how}"
            )
