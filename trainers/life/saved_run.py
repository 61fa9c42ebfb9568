"""Saves and restores a run: board, generation, populations, and the memory of its cycle finder. No TensorFlow."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tf2dist.data.errors import DataError
from tf2dist.system.atomic_files import replacing

_FILE = "life.npz"


@dataclass(frozen=True)
class SavedRun:
    """What a run continues from.

    Attributes:
      board: u64[rows, w].
      key: rule, size, edges and engine in words; a run continues only with the same ones.
      memory: of a `CycleFinder`, or empty.
      beginning: the first generation in words, as `Game.beginning` has it; empty where that was not saved.
      populations: of all generations up to this one, or of the last ones, i64[n]; None where nobody wanted a curve.
    """

    board: np.ndarray
    generation: int
    key: str
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    beginning: str = ""
    populations: np.ndarray | None = None


def path(folder: str) -> str:
    """Returns the path of the file in a directory."""
    return os.path.join(folder, _FILE)


def write(folder: str, run: SavedRun) -> None:
    """Replaces the saved run, completely or not at all."""
    memory = {f"memory_{name}": value for name, value in run.memory.items()}
    with replacing(os.path.realpath(path(folder))) as (part,), open(part, "wb") as file:
        arrays: dict[str, Any] = {
            "board": run.board,
            "generation": run.generation,
            "key": run.key,
            "beginning": run.beginning,
            **memory,
        }
        if run.populations is not None:
            arrays["populations"] = run.populations
        np.savez(file, **arrays)


def read(folder: str) -> SavedRun | None:
    """Returns the saved run; None if there is none.

    Raises:
      DataError: the file is not a saved run.
    """
    if not os.path.exists(path(folder)):
        return None
    try:
        with np.load(path(folder), allow_pickle=False) as file:
            memory = {n.removeprefix("memory_"): file[n] for n in file.files if n.startswith("memory_")}
            beginning = str(file["beginning"]) if "beginning" in file.files else ""
            populations = file["populations"] if "populations" in file.files else None
            board = file["board"]
            if board.dtype.kind != "u" or board.ndim != 2:
                raise ValueError(f"its board is {board.dtype}{list(board.shape)}")
            return SavedRun(board, int(file["generation"]), str(file["key"]), memory, beginning, populations)
    except Exception as error:  # NumPy and zipfile raise nearly any for a file that is damaged
        raise DataError(f"{path(folder)} is no board of a run ({error}); remove it, or use another directory") from None
