"""Checks of flags that several trainers define: --epochs, --steps, --learning_rate and --batch_size."""

from __future__ import annotations

import math

from tf2dist.errors import UsageError


def check_one_length(epochs: int | None, steps: int | None) -> None:
    """Raises UsageError when both --epochs and --steps are given."""
    if epochs and steps:
        raise UsageError(f"--epochs={epochs} and --steps={steps} both say how long; give one")


def check_learning_rate(value: float | None) -> None:
    """Raises UsageError when --learning_rate is NaN or infinite."""
    if not math.isfinite(value or 0.0):
        raise UsageError(f"--learning_rate={value} is no number to learn with; give one from 0 on")


def check_batch_size(size: int, replicas: int) -> int:
    """Returns the global batch size `size`.

    Raises:
      UsageError: it does not divide among the replicas; names the nearest sizes that do.
    """
    if size % replicas:
        below = size - size % replicas
        near = f"{below} or {below + replicas}" if below else f"{replicas}"
        raise UsageError(f"--batch_size={size} does not divide among {replicas} replicas; {near} would")
    return size
