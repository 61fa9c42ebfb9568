"""The population of every generation, as a chart or a table. No TensorFlow."""

from __future__ import annotations

import numpy as np

from tf2dist.system import files
from tf2dist.system.atomic_files import replacing


def write(path: str, first: int, parts: list[np.ndarray]) -> None:
    """Writes populations from generation `first` on, in parts i64[n]: a table if `path` ends in .csv, else a PNG."""
    populations = np.concatenate(parts)
    generations = np.arange(first, first + len(populations))
    with replacing(files.target(path)) as (part,):
        if path.endswith(".csv"):
            rows = np.stack([generations, populations], 1)
            np.savetxt(part, rows, "%d", ",", header="generation,population", comments="")
            return
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.add_subplot(xlabel="generation", ylabel="living cells")
        axes.plot(generations, populations, linewidth=1)
        axes.set_ylim(bottom=0)
        figure.savefig(part, format="png", dpi=120)
