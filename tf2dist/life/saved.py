"""A run on the disk: its board, its generation, and what its cycle finder remembers. No TensorFlow."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tf2dist.atomic import replacing
from tf2dist.data.errors import DataError

_FILE = "life.npz"


@dataclass(frozen=True)
class Saved:
    """A run that can be gone on with.

    Attributes:
      board: u64[rows, w].
      key: rule, size, edges and engine in words; a run goes on under the same ones.
      memory: of a `tf2dist.life.cycle.Finder`, or empty.
    """

    board: np.ndarray
    generation: int
    key: str
    memory: dict[str, np.ndarray] = field(default_factory=dict)


def path(folder: str) -> str:
    """The file in the folder."""
    return os.path.join(folder, _FILE)


def write(folder: str, saved: Saved) -> None:
    """Writes the run in the place of the one that is there, whole or not at all."""
    memory = {f"memory_{name}": value for name, value in saved.memory.items()}
    with replacing(os.path.realpath(path(folder))) as (part,), open(part, "wb") as file:
        arrays: dict[str, Any] = {"board": saved.board, "generation": saved.generation, "key": saved.key, **memory}
        np.savez(file, **arrays)


def read(folder: str) -> Saved | None:
    """The run in the folder; None if there is none.

    Raises:
      DataError: the file cannot be read as one.
    """
    if not os.path.exists(path(folder)):
        return None
    try:
        with np.load(path(folder), allow_pickle=False) as file:
            memory = {n.removeprefix("memory_"): file[n] for n in file.files if n.startswith("memory_")}
            return Saved(file["board"], int(file["generation"]), str(file["key"]), memory)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path(folder)} is no board of a run ({error}); remove it, or use another directory") from None
