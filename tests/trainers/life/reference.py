"""The Game of Life in ten lines of NumPy, to compare engines with."""

import numpy as np


def generations(cells, rule, edges, count):
    """The board u8[rows, columns] `count` generations after `cells`."""
    for _ in range(count):
        padded = np.pad(cells, 1, mode="wrap" if edges == "torus" else "constant")
        rows, columns = cells.shape
        around = [padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3) if (i, j) != (1, 1)]
        neighbours = np.sum(around, axis=0)
        born, stays = np.isin(neighbours, list(rule.birth)), np.isin(neighbours, list(rule.survival))
        cells = np.where(cells == 1, stays, born).astype(np.uint8)
    return cells


def first_cycle(cells, rule, edges):
    """The generation from which the board repeats itself, and its period, by remembering every board."""
    seen = {}
    while cells.tobytes() not in seen:
        seen[cells.tobytes()] = len(seen)
        cells = generations(cells, rule, edges, 1)
    return seen[cells.tobytes()], len(seen) - seen[cells.tobytes()]
