"""What came of a training, and how two are compared: rounding is allowed, a loss that is 1 % off is not.

Imports no TensorFlow, so that whoever compares what other processes have trained starts at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

_FLOAT32, _BITS16 = 1e-3, 3e-2  # of how far a variable has moved, and of a number in the logs
_NOISE = 10.0  # times the difference that rounding makes to Keras itself is allowed


@dataclass
class Outcome:
    """What came of a training.

    Attributes:
      status: "trained"; "refused", by a ValueError that our own code raised before any update; or "failed".
      message, error: why it did not train, in one line, and the name of the exception.
      fatal: may the process be of no use for another training?
      initial, final: the weights and the optimizer's variables before and after, by place and name.
      numbers: everything else that is compared, as flat lists of numbers by name.
      seconds: how long it took.
    """

    status: str = "trained"
    message: str = ""
    error: str = ""
    fatal: bool = False
    initial: dict[str, np.ndarray] = field(default_factory=dict)
    final: dict[str, np.ndarray] = field(default_factory=dict)
    numbers: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: float = 0.0


def tolerance(dtype: str) -> float:
    """The relative difference that rounding may make under a dtype policy."""
    return _FLOAT32 if dtype == "float32" else _BITS16


def differences(ours: Outcome, theirs: Outcome, dtype: str, noise: Outcome | None = None) -> list[str]:
    """What differs, a line each; nothing where all is equal but for rounding.

    Args:
      ours, theirs: trainings of the same configuration.
      dtype: the configuration's.
      noise: Keras's training with the rows of each batch in another order. Where it differs from `theirs` the numbers
        are ill-conditioned, and that difference says how close they can be.
    """
    found = [f"initial {name}" for name, value in theirs.initial.items() if _apart(ours.initial.get(name), value, 0.0)]
    found += _names("variables", ours.final, theirs.final) + _names("logs", ours.numbers, theirs.numbers)
    near = tolerance(dtype)
    for name, value in theirs.numbers.items():
        size = float(np.max(np.abs(value[np.isfinite(value)]), initial=0.0))
        allowed = near * size + 1e-6 + _noise(noise.numbers.get(name) if noise else None, value)
        if _apart(ours.numbers.get(name), value, allowed):
            found.append(_line(name, ours.numbers[name], value, size))
    for name, value in theirs.final.items():
        begun = theirs.initial.get(name, np.zeros_like(value))
        finite = np.isfinite(value)
        moved = float(np.max(np.abs(value.astype(np.float64) - begun)[finite], initial=0.0))
        allowed = near * moved + 2e-6 * float(np.max(np.abs(value[finite]), initial=1.0))
        allowed += _noise(noise.final.get(name) if noise else None, value)
        if _apart(ours.final.get(name), value, allowed):
            found.append(_line(name, ours.final[name], value, moved))
    return found


def _names(what: str, ours: Mapping, theirs: Mapping) -> list[str]:
    missing, more = [k for k in theirs if k not in ours], [k for k in ours if k not in theirs]
    return [f"{what} missing: {missing}, beside them: {more}"] if missing or more else []


def _noise(value: np.ndarray | None, theirs: np.ndarray) -> float:
    if value is None or value.shape != theirs.shape:
        return 0.0
    apart = np.abs(value.astype(np.float64) - theirs)
    return _NOISE * float(np.max(apart[np.isfinite(apart)], initial=0.0))


def _apart(ours: np.ndarray | None, theirs: np.ndarray, allowed: float) -> bool:
    if ours is None:
        return False  # its name is listed as missing
    if ours.shape != theirs.shape:
        return True
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)
    return not bool(np.all(same))


def _line(name: str, ours: np.ndarray, theirs: np.ndarray, size: float) -> str:
    if ours.shape != theirs.shape:
        return f"{name}: shape {ours.shape} for {theirs.shape}"
    if theirs.size <= 4:
        return f"{name}: {np.round(ours, 6).tolist()} for {np.round(theirs, 6).tolist()}"
    apart = np.abs(ours.astype(np.float64) - theirs)
    return f"{name}: {np.nanmax(apart):.3g} off, where it is or has moved {size:.3g}"
